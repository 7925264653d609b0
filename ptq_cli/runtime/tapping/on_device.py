"""A tapped model whose tensors stay on the device that it runs on: they are read where they are."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from ptq_cli.calibdata.dataset.batches import Batch, cut
from ptq_cli.core.errors import RuntimeFailedError, first_line
from ptq_cli.core.tensors import Array
from ptq_cli.runtime.machine import Device
from ptq_cli.runtime.session import DeviceOutputs, Session, is_memory_full
from ptq_cli.runtime.tapping.pieces import (
    Cutter,
    Forward,
    ForwardPass,
    PieceSize,
    Signature,
    begins_with,
    signature,
)

MOST_PIECE_BYTES = 4 << 30  # beyond it a run's fixed cost no longer shows
_AT_ONCE = 2  # one is run while the tensors of another are counted
# A piece's share of the free memory: two pieces, with the tensors between the tapped ones and work space.
_SHARE = 8


def device_pieces(device: Device, limit: int | None) -> PieceSize:
    """How large pieces may be on a device, by its free memory and the ``limit`` of what may be taken."""
    free = free_memory(device)
    return PieceSize(min(MOST_PIECE_BYTES, (free if limit is None else min(free, limit)) // _SHARE))


def free_memory(device: Device) -> int:
    """How many bytes of a GPU's memory nobody uses."""
    return int(torch.cuda.mem_get_info(device.number)[0])


class DeviceTensors(list[torch.Tensor]):
    """Tensors on a device, with what writes the next run's into the same memory.

    Attributes:
        outputs: of the run that made them.
        of: the shapes of that run's inputs.
    """

    def __init__(self, outputs: DeviceOutputs, of: Signature) -> None:
        super().__init__(as_tensors(outputs.values))
        self.outputs, self.of = outputs, of


class DeviceModel:
    """Runs pieces of batches on a device, one while the tensors of another are counted there.

    As ``TappedModel`` does on the host, it looks at the first samples: a batch is cut where a sample's
    tensors depend on that sample alone. Outputs are bound once: as long as inputs keep their shapes, a run
    writes into tensors of an earlier one that are counted.
    """

    def __init__(
        self, session: Session, taps: Sequence[str], size: PieceSize, *, sizes_vary: bool = False
    ) -> None:
        self._session = session
        self._taps = tuple(taps)
        self._whole = self._seen = size.whole
        self._cutter = Cutter(size)
        self._bindable = not sizes_vary
        self._free: list[DeviceTensors] = []

    def forward(self) -> Forward:
        """Return how batches are run."""
        turn = ForwardPass(
            taps=self._taps,
            run=self.run,
            recycle=self.recycle,
            in_model_order=lambda _name, tensor: as_array(tensor),
        )
        return Forward((turn,), _AT_ONCE, self.split, self.smaller)

    def run(self, inputs: Mapping[str, Array]) -> Sequence[torch.Tensor]:
        """Return the tapped tensors, on the device."""
        of = signature(inputs)
        try:
            earlier = self._free.pop()  # One operation, so that threads cannot take the same.
        except IndexError:
            earlier = None
        if earlier is not None and earlier.of == of:
            try:
                self._session.run_on_device_again(inputs, earlier.outputs)
            except RuntimeFailedError as error:
                if is_memory_full(error):
                    raise
                # The shape of a tensor may depend on values; then ONNX Runtime has to make it.
                self._bindable = False
            else:
                return earlier
        # Those of other shapes go before memory is needed for these.
        del earlier
        return DeviceTensors(self._session.run_on_device(inputs), of)

    def recycle(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take tensors back that are counted; nobody may read them from now on."""
        if self._bindable and isinstance(tensors, DeviceTensors):
            self._free.append(tensors)

    def split(self, batch: Batch) -> Sequence[Batch]:
        """Cut a batch into the pieces that are run."""
        if not self._seen:
            self._seen = True
            # Asked once, on the first batch: each probe is a run of the model.
            self._whole = not self._samples_are_apart(batch)
        return (batch,) if self._whole else self._cutter.cut(batch, self._sample_bytes)

    def smaller(self, piece: Batch) -> Sequence[Batch]:
        """Cut a piece for which the device has not enough memory, and give back what waits for a next run."""
        self._free.clear()
        return (piece,) if self._whole or piece.size == 1 else self._cutter.halve(piece)

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
