"""The counting loop on a GPU: one pass over all tensors of a piece finds ranges and counts values.

The bins are those of ``host_kernels``, so that the same values give the same statistics to the last bit, and
all arithmetic is of integers on the bits of float32: a device that takes denormals for zeros counts them all
the same. A block counts a share of all values, one tensor after the other, in a table in its shared memory,
and adds that to the tensor's own. Zeros have no slot: they are the finite values that no slot has.

A table's bins are those of its largest octave so far. A pass leaves values of larger ones out, while the
range tells that there are some; ``settle`` then makes the bins wider, and a second pass counts what was left
out. Where nothing grew, as after the first pieces, that one reads nothing. The host waits for none of them.

numba compiles kernels when they are first launched: numba-cuda for a GPU; its simulator runs them in tests.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import cuda as numba_cuda

from ptq_cli.collectors.host_kernels import (
    COARSE_BINS,
    COARSE_START,
    FLOAT_MANTISSA_BITS,
    LINEAR_BINS,
    MAGNITUDE,
    MANTISSA_BITS,
    SMALLEST_TOP,
    ZERO_START,
)

COUNTED_SLOTS = ZERO_START  # Exactly 48 KiB of uint32, all that a block may have without asking for more.
NO_TOP = -1  # The largest octave of a table in which nothing was counted.
# A pass counts the octaves from a table's floor on: the first pass all, the second what was left out, if any.
ALL_OCTAVES, NO_OCTAVE = -1, 256
LOW, HIGH, NAN, POSITIVE, NEGATIVE = 0, 1, 2, 3, 4  # What a pass finds: the finite range, and what is not.
EMPTY_PASS = (0x7FFFFFFF, -0x80000000, 0, 0, 0)

# Linear bins below 8 stay empty: two of their slots hold the range of a block, as unsigned integers.
_LOW_SLOT, _HIGH_SLOT = 0, 1
_TO_UNSIGNED = 1 << 31
_FIRST_BIN = 8
_EXPONENT_MASK, _INFINITY = 0xFF, 0x7F800000
_HIDDEN_BIT = 1 << FLOAT_MANTISSA_BITS
_KEY_SHIFT = FLOAT_MANTISSA_BITS - MANTISSA_BITS
_COARSE_SHIFT = 20  # of the sign, the exponent and 3 bits of the mantissa
_SIGN_SHIFT = 19  # of the sign, to the bit of LINEAR_BINS

cuda: Any = numba_cuda  # Its names are made while it is imported, out of sight of a type checker.


def _kernel(function: Callable[..., Any]) -> Any:
    return cuda.jit(function)


def _called(function: Callable[..., Any]) -> Any:
    return cuda.jit(device=True)(function)


@_called
def bits_of_float32(word: Any) -> Any:  # pragma: no cover - compiled
    """A float32's own bits."""
    return np.int32(word)


@_called
def bits_of_bfloat16(word: Any) -> Any:  # pragma: no cover - compiled
    """The bits of the float32 that a bfloat16 is, given its own."""
    return np.int32(np.int32(word) << np.int32(16))


@_called
def bits_of_float16(word: Any) -> Any:  # pragma: no cover - compiled
    """The bits of the float32 that a float16 is, given its own."""
    sign = np.int32(np.int32(np.int32(word) >> np.int32(15)) << np.int32(31))
    exponent = np.int32((np.int32(word) >> np.int32(10)) & np.int32(31))
    fraction = np.int32(np.int32(word) & np.int32(0x3FF))
    if exponent == 31:
        return np.int32(sign | np.int32(_INFINITY) | (fraction << np.int32(13)))
    if exponent == 0:
        if fraction == 0:
            return sign
        # A denormal: its first bit is the one that float32 leaves out.
        while fraction < 0x400:
            fraction = np.int32(fraction << np.int32(1))
            exponent = np.int32(exponent - np.int32(1))
        exponent = np.int32(exponent + np.int32(1))
        fraction = np.int32(fraction & np.int32(0x3FF))
    exponent = np.int32(exponent + np.int32(112))
    return np.int32(sign | (exponent << np.int32(FLOAT_MANTISSA_BITS)) | (fraction << np.int32(13)))


@_called
def bits_of_float64(word: Any) -> Any:  # pragma: no cover - compiled
    """The bits of the float32 nearest to a float64, given its own; of two as near, the even one."""
    sign = np.int32(np.int32(np.int64(word) >> np.int64(63)) << np.int32(31))
    magnitude = np.int64(word) & np.int64(0x7FFFFFFFFFFFFFFF)
    if magnitude > np.int64(0x7FF0000000000000):
        return np.int32(sign | np.int32(MAGNITUDE))
    exponent = np.int64((magnitude >> np.int64(52)) - np.int64(896))
    if exponent > 254:
        return np.int32(sign | np.int32(_INFINITY))
    if exponent < -24:
        return sign
    fraction = (magnitude & np.int64((1 << 52) - 1)) | np.int64(1 << 52)
    shift = np.int64(29)
    if exponent < 1:
        shift, exponent = np.int64(30) - exponent, np.int64(1)
    half = np.int64(1) << (shift - np.int64(1))
    kept, rest = fraction >> shift, fraction & (half + half - np.int64(1))
    if rest > half or (rest == half and (kept & np.int64(1)) == 1):
        kept = kept + np.int64(1)
    # The bit that float32 leaves out raises the exponent by one, as a fraction does that is rounded up to it.
    return np.int32(sign | np.int32(((exponent - np.int64(1)) << np.int64(FLOAT_MANTISSA_BITS)) + kept))


@_called
def slot_of(bits: Any, top: Any) -> Any:  # pragma: no cover - compiled
    """The slot of a value other than 0, given its bits, whose octave is not above ``top``."""
    exponent = np.int32((bits >> np.int32(FLOAT_MANTISSA_BITS)) & np.int32(_EXPONENT_MASK))
    if exponent < top - 8:
        return np.int32(COARSE_START + ((bits >> np.int32(_COARSE_SHIFT)) & np.int32(COARSE_BINS - 1)))
    mantissa = np.int32((bits & np.int32(_HIDDEN_BIT - 1)) | np.int32(_HIDDEN_BIT))
    linear = np.int32(mantissa >> np.int32(_KEY_SHIFT + top - exponent))
    return np.int32(linear | ((bits >> np.int32(_SIGN_SHIFT)) & np.int32(LINEAR_BINS)))


def _take(bits_of: Any, *, counts: bool) -> Any:
    @_called
    def take(
        word: Any, low: Any, high: Any, floor: Any, top: Any, held: Any, found: Any, row: Any
    ) -> Any:  # pragma: no cover - compiled
        """Count a value; return the range with it. What is not finite is told of in the first pass alone."""
        bits = bits_of(word)
        magnitude = np.int32(bits & np.int32(MAGNITUDE))
        if magnitude >= _INFINITY:
            if floor == ALL_OCTAVES:
                column = NAN if magnitude > _INFINITY else (POSITIVE if bits > 0 else NEGATIVE)
                cuda.atomic.add(found, (row, column), np.int64(1))
            return low, high
        if counts and magnitude != 0:
            exponent = np.int32(magnitude >> np.int32(FLOAT_MANTISSA_BITS))
            if floor <= exponent <= top:
                cuda.atomic.add(held, slot_of(bits, top), np.uint32(1))
        key = np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(MAGNITUDE)))
        return min(low, key), max(high, key)

    return take


@cache
def pass_over(bits_of: Any, *, counts: bool) -> Any:
    """The kernel of a pass over values whose words ``bits_of`` reads; without ``counts`` it finds ranges.

    It is made once in a process, and so compiled once for a kind of GPU.

    Shapes: memory: (M,), the words in which tensors lie. begins: (T,), where each begins there. starts:
        (T + 1,), how many values those before it have. rows: (T,), which of ``floors``, ``tops``, ``tables``
        and ``found`` are its own. floors, tops: (R,). tables: (R, 12288). found: (R, 5).

    ``share`` is how many values a block takes; ``step`` is 1, or -1 to take away what the same pass added.
    """
    take = _take(bits_of, counts=counts)
    slots = COUNTED_SLOTS if counts else 2

    @_kernel
    def kernel(
        memory: Any,
        begins: Any,
        starts: Any,
        rows: Any,
        share: Any,
        step: Any,
        floors: Any,
        tops: Any,
        tables: Any,
        found: Any,
    ) -> None:  # pragma: no cover - compiled
        held = cuda.shared.array(slots, np.uint32)
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        position = np.int64(cuda.blockIdx.x) * share
        stop = min(position + share, starts[rows.size])
        tensor = 0
        while position < stop:
            while starts[tensor + 1] <= position:
                tensor += 1
            end = min(stop, starts[tensor + 1])
            first = begins[tensor] + position - starts[tensor]
            last = first + end - position
            position = end
            row = rows[tensor]
            floor, top = np.int32(floors[row]), np.int32(tops[row])
            if floor != ALL_OCTAVES and floor > top:
                continue
            for slot in range(thread, slots, threads):
                held[slot] = np.uint32(0xFFFFFFFF) if slot == _LOW_SLOT else np.uint32(0)
            cuda.syncthreads()
            low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
            index = first + thread
            # Four words are on their way at once: one after the other, each would be waited for.
            while index + 3 * threads < last:
                one, two = memory[index], memory[index + threads]
                three, four = memory[index + 2 * threads], memory[index + 3 * threads]
                low, high = take(one, low, high, floor, top, held, found, row)
                low, high = take(two, low, high, floor, top, held, found, row)
                low, high = take(three, low, high, floor, top, held, found, row)
                low, high = take(four, low, high, floor, top, held, found, row)
                index += 4 * threads
            while index < last:
                low, high = take(memory[index], low, high, floor, top, held, found, row)
                index += threads
            if low <= high:
                cuda.atomic.min(held, _LOW_SLOT, np.uint32(np.int64(low) + np.int64(_TO_UNSIGNED)))
                cuda.atomic.max(held, _HIGH_SLOT, np.uint32(np.int64(high) + np.int64(_TO_UNSIGNED)))
            cuda.syncthreads()
            # Without a finite value the range is still that of nothing.
            if thread == 0 and held[_LOW_SLOT] <= held[_HIGH_SLOT]:
                cuda.atomic.min(found, (row, LOW), np.int64(held[_LOW_SLOT]) - np.int64(_TO_UNSIGNED))
                cuda.atomic.max(found, (row, HIGH), np.int64(held[_HIGH_SLOT]) - np.int64(_TO_UNSIGNED))
            if counts:
                for slot in range(thread, slots, threads):
                    if slot > _HIGH_SLOT and held[slot] != 0:
                        cuda.atomic.add(tables, (row, slot), step * np.int64(held[slot]))
            cuda.syncthreads()

    return kernel


@_kernel
def settle(
    rows: Any, floors: Any, tops: Any, tables: Any, found: Any, keeps_rest: Any
) -> None:  # pragma: no cover - compiled
    """Widen the bins of each tensor whose largest octave grew, and set the floor for a second pass.

    A block takes a tensor. One with values that are not finite is left as it is, unless ``keeps_rest``.
    """
    held = cuda.shared.array(LINEAR_BINS, np.int64)
    if cuda.blockIdx.x >= rows.size:
        return
    row = rows[cuda.blockIdx.x]
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    old = np.int32(tops[row])
    new = old
    low, high = found[row, LOW], found[row, HIGH]
    bad = found[row, NAN] + found[row, POSITIVE] + found[row, NEGATIVE]
    if low <= high and (keeps_rest or bad == 0):
        least = low if low >= 0 else low ^ np.int64(-1)
        most = high if high >= 0 else high ^ np.int64(-1)
        largest = np.int32(max(least, most) >> np.int64(FLOAT_MANTISSA_BITS))
        new = max(old, largest, np.int32(SMALLEST_TOP))
    cuda.syncthreads()  # All have read what the first one writes now.
    if thread == 0:
        floors[row] = old + 1 if new > old else NO_OCTAVE
        tops[row] = new
    if new == old or old == NO_TOP:  # noqa: PLR1714 - numba compares no tuples of two types
        return
    for start in range(0, COARSE_START, LINEAR_BINS):
        for slot in range(thread, LINEAR_BINS, threads):
            held[slot] = tables[row, start + slot]
            tables[row, start + slot] = 0
        cuda.syncthreads()
        for slot in range(_FIRST_BIN + thread, LINEAR_BINS, threads):
            if held[slot] != 0:
                octave = np.int32(0)
                while (slot >> (octave + 1)) != 0:
                    octave = np.int32(octave + 1)
                # The value at the bin's edge: the wider bin that has it has all of this one.
                fraction = np.int32((slot << (MANTISSA_BITS - octave)) & ((1 << MANTISSA_BITS) - 1))
                key = np.int32(((old - MANTISSA_BITS + octave) << MANTISSA_BITS) | fraction)
                bits = np.int32(key << np.int32(_KEY_SHIFT))
                if start != 0:
                    bits = np.int32(bits | np.int32(-0x80000000))
                cuda.atomic.add(tables, (row, slot_of(bits, new)), held[slot])
        cuda.syncthreads()
