"""The samples of an evaluation in pieces whose tensors between stages fit into memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from ptq_cli.calibdata.bind import fixed_batch_size
from ptq_cli.calibdata.dataset.batches import Batch, checked
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.qdq.staged_model import StagedModel
from ptq_cli.runtime.tapping.pieces import Cutter, PieceSize


def pieces_of(
    dataset: Dataset,
    inputs: Sequence[TensorSpec],
    batch_size: int,
    staged: StagedModel,
    *,
    whole_batches: bool = False,
) -> Iterator[Batch]:
    """Yield the samples in pieces whose tensors between stages fit into memory; each is checked for NaN.

    With ``whole_batches`` batches are not cut: a branch or a loop may look at all samples.
    """
    fixed = fixed_batch_size(inputs)
    cutter = Cutter(PieceSize(PIECE_BYTES))

    def sample_bytes(arrays: Mapping[str, Array]) -> int:
        return sum(held.nbytes for held in staged.run(arrays, quantized=False).values())

    with closing(checked(dataset.batches(fixed or batch_size))) as batches:
        for batch in batches:
            yield from (batch,) if fixed or whole_batches else cutter.cut(batch, sample_bytes)


PIECE_BYTES = 32 << 20
"""Float tensors between stages of one piece. They are held beside their quantized twins; larger ones are no
faster."""
