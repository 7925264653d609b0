"""A tapped model whose tensors stay on the device that it runs on: PyTorch reads them where they are."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from ptq_cli.calibdata.dataset.batches import Batch, cut
from ptq_cli.core.errors import RuntimeFailedError, first_line
from ptq_cli.core.tensors import Array
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.pieces import Cutter, Forward, ForwardPass, PieceSize, begins_with

DEVICE_PIECES = PieceSize(512 << 20)  # two runs are held: enough to keep a GPU at work


_AT_ONCE = 2  # one is run while the tensors of another are counted


class DeviceModel:
    """Runs pieces of batches on a device, one while the tensors of another are counted there.

    As ``TappedModel`` does on the host, it looks at the first samples: a batch is cut where a sample's
    tensors depend on that sample alone.
    """

    def __init__(self, session: Session, taps: Sequence[str], size: PieceSize = DEVICE_PIECES) -> None:
        self._session = session
        self._taps = tuple(taps)
        self._whole = self._seen = size.whole
        self._cutter = Cutter(size)

    def forward(self) -> Forward:
        """Return how batches are run.

        Nothing is recycled: a collector has read a tensor when its ``update`` returns, and ONNX Runtime uses
        the memory again as soon as nobody holds the tensor.
        """
        turn = ForwardPass(
            taps=self._taps, run=self.run, in_model_order=lambda _name, tensor: as_array(tensor)
        )
        return Forward((turn,), _AT_ONCE, self.split)

    def run(self, inputs: Mapping[str, Array]) -> list[torch.Tensor]:
        """Return the tapped tensors, on the device."""
        return as_tensors(self._session.run_on_device(inputs))

    def split(self, batch: Batch) -> Sequence[Batch]:
        """Cut a batch into the pieces that are run."""
        if not self._seen:
            self._seen = True
            # Asked once, on the first batch: each probe is a run of the model.
            self._whole = not self._samples_are_apart(batch)
        return (batch,) if self._whole else self._cutter.cut(batch, self._sample_bytes)

    def _samples_are_apart(self, batch: Batch) -> bool:
        one, two = (cut(batch, 0, min(size, batch.size)) for size in (1, 2))
        try:
            first, both = ([as_array(tensor) for tensor in self.run(part.inputs)] for part in (one, two))
        except RuntimeFailedError:
            # One sample alone is nothing for this model; if batches are neither, the first of them will tell.
            return False
        return all(begins_with(b, a, two.size) for a, b in zip(first, both, strict=True))

    def _sample_bytes(self, inputs: Mapping[str, Array]) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.run(inputs))


def as_tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    """Return values with DLPack as PyTorch's tensors, in the same memory.

    Booleans come as uint8, 0 and 1.
    """
    try:
        # DLPack shares the memory: a copy to the host and back would cost what the GPU gains.
        return [from_dlpack(value.__dlpack__()) for value in values]
    except (RuntimeError, BufferError) as error:
        raise RuntimeFailedError(
            f"a tensor cannot be handed from ONNX Runtime to PyTorch: {first_line(error)}",
            hint="leave 'runtime.device' out",
        ) from error


def as_array(tensor: torch.Tensor) -> Array:
    """Return a tensor's values on the host.

    numpy has no bfloat16; it comes as float32, which holds all its values.

    Example:
        >>> as_array(torch.tensor([1.5], dtype=torch.bfloat16))
        array([1.5], dtype=float32)
    """
    # numpy has no bfloat16; float32 holds each of its values.
    host = tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor
    array: Array = host.cpu().numpy()
    return array
