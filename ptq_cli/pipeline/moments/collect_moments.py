"""The calibration data are run once more, and the products of what layers read are added up."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.selection import EVERY_BATCH, Selection
from ptq_cli.core.errors import NonFiniteActivationError
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.core.work.progress import ProgressCallback
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.calibration.calibration_checkpoint import CheckpointWriter
from ptq_cli.pipeline.calibration.counting.count_batches import (
    AfterBatch,
    BatchReports,
    count_batches,
    non_finite_error,
)
from ptq_cli.pipeline.calibration.counting.pieces_ahead import Piece
from ptq_cli.pipeline.calibration.measure import checked
from ptq_cli.pipeline.calibration.open_forward import open_forward
from ptq_cli.recovery.moments.tensor_moments import (
    MomentSite,
    TensorMomentCollector,
    TensorMoments,
    total_bytes,
)
from ptq_cli.runtime.device import Device
from ptq_cli.runtime.machine import Machine
from ptq_cli.runtime.tapping.forward import Tensor

STAGE = "moments"


@dataclass(frozen=True, kw_only=True)
class MomentSubject:
    """What is run for moments.

    Attributes:
        model: the graph of the float model.
        stored: the same as its files hold it.
        inputs: specs of its inputs.
        dataset: whose arrays have the names of the inputs.
        batch_size: how many samples are run together.
        allow_nonfinite: NaN and Inf in the data and in tensors are no error.
    """

    model: ir.Model
    stored: StoredModel
    inputs: tuple[TensorSpec, ...]
    dataset: Dataset
    batch_size: int
    allow_nonfinite: bool


def collect_moments(
    subject: MomentSubject,
    sites: Sequence[MomentSite],
    machine: Machine,
    progress: ProgressCallback,
    *,
    selection: Selection = EVERY_BATCH,
    seen: int = 0,
    after_batch: AfterBatch | None = None,
    checkpoints: CheckpointWriter[TensorMoments] | None = None,
    initial: Mapping[str, TensorMoments] | None = None,
) -> tuple[dict[str, TensorMoments], int, int]:
    """Return the moments of tensors, and how many batches and samples were run.

    Args:
        subject: the model and the data.
        sites: the tensors.
        machine: what of it may be used; models are run on its processor.
        progress: is called after each batch.
        selection: which batches.
        seen: samples that were run before.
        after_batch: is called after each batch.
        checkpoints: is given the moments after a batch where it wants them.
        initial: moments to begin with.

    Raises:
        NonFiniteActivationError: a tensor holds NaN or Inf, and that is an error.
        PtqError: the data cannot be read, or the model cannot be run.
    """
    fed = {spec.name for spec in subject.inputs}
    taps = [site.tensor for site in sites if site.tensor not in fed]
    size, dataset = subject.batch_size, subject.dataset
    forward = open_forward(
        subject, taps, replace(machine, device=Device()), dataset, size, progress, {}, kept=total_bytes(sites)
    )
    batches = dataset.batches(size, selection)
    count = selection.samples(dataset.count, size) if dataset.count is not None else None
    reports = BatchReports(
        stage=STAGE,
        total=seen + count if count is not None else None,
        seen=seen,
        progress=progress,
        after_batch=after_batch,
        checkpoints=checkpoints,
    )
    return count_batches(
        _Work(sites, fed, allow_nonfinite=subject.allow_nonfinite),
        forward,
        batches if subject.allow_nonfinite else checked(batches),
        reports,
        prefetch=machine.prefetch,
        initial=initial,
    )


class _Work:
    """Runs pieces and collects from what they gave, in any of several threads."""

    def __init__(self, sites: Sequence[MomentSite], fed: set[str], *, allow_nonfinite: bool) -> None:
        self._collectors = {site.tensor: TensorMomentCollector(site) for site in sites}
        self._locks = {name: threading.Lock() for name in self._collectors}
        self._inputs = [name for name in self._collectors if name in fed]
        self._images = {site.tensor for site in sites if site.is_of_images}
        self._allow_nonfinite = allow_nonfinite

    def run_and_count(self, piece: Piece) -> NonFiniteActivationError | None:
        """Return what is wrong with the piece's tensors, if anything is."""
        arrays = piece.turn.run(piece.batch.inputs)
        given = dict(zip(piece.turn.taps, arrays, strict=True))
        found = {name: self._view(piece, name)(name, array) for name, array in given.items()}
        if piece.first:
            found |= {name: piece.batch.inputs[name] for name in self._inputs}
        error = None
        for name, array in found.items():
            with self._locks[name]:
                finite = self._collectors[name].update(array)
            if not finite and not self._allow_nonfinite and error is None:
                whole = piece.turn.in_model_order(name, given[name]) if name in given else array
                error = non_finite_error(name, whole, piece, is_nested=False)
        found.clear()
        given.clear()
        piece.turn.recycle(arrays)
        return error

    def _view(self, piece: Piece, name: str) -> Callable[[str, Tensor], Array]:
        return piece.turn.by_channels if name in self._images else piece.turn.in_model_order

    def statistics(self) -> dict[str, TensorMoments]:
        return {name: collector.statistics() for name, collector in self._collectors.items()}
