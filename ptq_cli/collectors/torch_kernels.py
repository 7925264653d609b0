"""The counting of ``host_kernels`` on the device where a tensor is, with PyTorch's operators.

The table and its bins are the same, so that the same values give the same statistics to the last bit. It is
arithmetic of integers on the bits of float32: a device that takes denormals for zeros counts them all the
same. A tensor is passed over in parts, so that what is needed besides it stays small.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ptq_cli.collectors.bit_histogram import KEY_SHIFT
from ptq_cli.collectors.host_kernels import (
    COARSE_BINS,
    COARSE_START,
    FLOAT_MANTISSA_BITS,
    LINEAR_BINS,
    MAGNITUDE,
    MANTISSA_BITS,
    NOTHING,
    SLOTS,
    ZERO_SLOTS,
    ZERO_START,
)

PART_VALUES = 1 << 22  # Values of a part; it takes a dozen times 4 bytes of each besides.
KEY_MASK = (1 << (9 + MANTISSA_BITS)) - 1


def find_range(tensor: torch.Tensor) -> tuple[int, int]:
    """The smallest and the largest value, as ``kernels.find_range`` does.

    Shapes: tensor: any.
    Edge case: Without values it is the range of nothing.

    Example:
        >>> find_range(torch.tensor([1.0, 0.0]))
        (0, 1065353216)
    """
    if not tensor.numel():
        return NOTHING
    ends = []
    for part in _parts(tensor):
        bits = _bits(part)
        ends.append(torch.stack(torch.aminmax(bits ^ ((bits >> 31) & MAGNITUDE))))
    ranges = torch.stack(ends)
    # One transfer, which waits for the device.
    low, high = torch.stack((ranges[:, 0].min(), ranges[:, 1].max())).tolist()
    return int(low), int(high)


def new_table(device: torch.device) -> torch.Tensor:
    """An empty table on a device.

    Shapes: result: (12304,).
    """
    return torch.zeros(SLOTS, dtype=torch.int64, device=device)


def count_values(tensor: torch.Tensor, table: torch.Tensor, top: int) -> None:
    """Add finite values to the table's counts.

    Shapes: tensor: any. table: (12304,). top: the biased exponent of the largest octave, at least 12; none of
        the values is of a larger one.

    Example:
        >>> table = new_table(torch.device("cpu"))
        >>> count_values(torch.tensor([1.0, 1.0, 0.0]), table, 127)
        >>> int(table[2048]), int(table[ZERO_START:].sum())
        (2, 1)
    """
    for part in _parts(tensor):
        table += torch.bincount(_slots(_bits(part), top), minlength=SLOTS)


def _slots(bits: torch.Tensor, top: int) -> torch.Tensor:
    """Each value's slot: ``kernels.find_slots`` with a shift instead of the product."""
    magnitude = bits & MAGNITUDE
    exponent = magnitude >> FLOAT_MANTISSA_BITS
    mantissa = (magnitude & ((1 << FLOAT_MANTISSA_BITS) - 1)) | (1 << FLOAT_MANTISSA_BITS)
    # A shift by 32 or more is undefined; what lies so far below has a coarse bin.
    shift = (KEY_SHIFT + top - exponent).clamp_(max=31)
    linear = (mantissa >> shift) | ((bits >> 31) & LINEAR_BINS)
    coarse = COARSE_START + ((bits >> 20) & (COARSE_BINS - 1))
    slots = torch.where(exponent < top - 8, coarse, linear)
    # Many values on one slot wait for one another, on a GPU too.
    zeros = ZERO_START + (torch.arange(bits.numel(), dtype=torch.int32, device=bits.device) % ZERO_SLOTS)
    return torch.where(magnitude == 0, zeros, slots)


def count_keys(tensor: torch.Tensor) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], int]:
    """Each key that a value other than 0 has, how many values have it, and how many zeros there are.

    It is slower than ``count_values``, and needs no table: for tensors with tiny values only.

    Shapes: tensor: any. keys, counts: (N,), of which keys may repeat.

    Example:
        >>> keys, counts, zeros = count_keys(torch.tensor([1.0, 1.0, 0.0]))
        >>> keys.tolist() == [127 << 11], counts.tolist(), zeros
        (True, [2], 1)
    """
    keys, counts, zeros = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)], 0
    for part in _parts(tensor):
        bits = _bits(part)
        kept = bits[(bits & MAGNITUDE) != 0]
        found, times = torch.unique((kept >> KEY_SHIFT) & KEY_MASK, return_counts=True)
        keys.append(found.cpu().numpy().astype(np.uint32))
        counts.append(times.cpu().numpy())
        zeros += bits.numel() - kept.numel()
    return np.concatenate(keys), np.concatenate(counts), zeros


def _parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.split(tensor.reshape(-1), PART_VALUES)


def _bits(part: torch.Tensor) -> torch.Tensor:
    """Values as the bits of float32, with int32's sign."""
    return part.to(torch.float32).view(torch.int32)
