"""amax by entropy: the range whose quantized histogram diverges least from the histogram itself.

A candidate keeps the bins of a window. P is the histogram with what lies outside added to the window's end
bins. Q is the window's own counts, quantized: its bins are shared out to as many groups as there are levels,
and each occupied bin of a group gets the group's mean. The divergence of Q from P is

    sum(p * log(p / q) - p + q)

over counts divided by the tensor's total: the Kullback-Leibler divergence of measures that need not have the
same sum (Csiszár's I-divergence). NVIDIA normalizes Q by itself instead. The two differ by
``-log(1 - t) - t`` where ``t`` is the clipped share, some ``t^2 / 2``: nothing where a candidate makes
sense, and infinitely much where it clips everything, which is where NVIDIA's is at fault (docs/amax.md).
"""

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice, symmetric_choice
from ptq_cli.amax.linear_histogram import START_BIN, STRIDE, LinearHistogram, side_candidates
from ptq_cli.collectors.tensor_statistics import Counts
from ptq_cli.core.compiled import compiled

_SAME = 1e-12  # Divergences that differ by less are equal: their sums were rounded.
BEYOND = 1e-9  # Above the least by so much, a divergence is surely not it.
# Turns of the search over both ends. It comes to rest after three or four; two candidates may tie for ever.
MOST_TURNS = 16

_Indices = npt.NDArray[np.int64]
Divergences = npt.NDArray[np.float64]
_Floats = npt.NDArray[np.float64]


def entropy_amax(
    histogram: LinearHistogram, levels: int, *, start_bin: int = START_BIN, stride: int = STRIDE
) -> Choice:
    """The symmetric range that keeps the magnitudes' distribution best.

    Args:
        histogram: of the tensor.
        levels: that share the magnitudes: ``2^(bits - 1)`` for a signed format, ``2^bits`` for an unsigned.
        start_bin: how many bins the first candidate keeps.
        stride: how many more each following one keeps.

    Units: As the tensor's values: the upper edge of the last bin that is kept, at most the largest magnitude.
    Edge case: Of equal divergences the largest range wins. A candidate that ends in an empty bin diverges
        infinitely, unless it clips nothing. With as many levels as bins no candidate loses anything but what
        it clips, so the whole range is the only one. No value, or only zeros: 0.
    Source: NVIDIA pytorch-quantization, HistogramCalibrator.compute_amax("entropy"); Migacz 2017, "8-bit
        inference with TensorRT"; Csiszár 1991, "Why least squares and maximum entropy?".

    Example:
        >>> from ptq_cli.amax.linear_histogram import histogram_of_values
        >>> values = np.concatenate([np.linspace(-1, 1, 8001), [3.0]])
        >>> round(entropy_amax(histogram_of_values(values), levels=128).amax, 3)
        1.0
    """
    counts, start_bin = without_spike(histogram.magnitudes), min(start_bin, histogram.bins)
    stops = np.arange(start_bin, histogram.bins + 1, stride)
    if not histogram.top or not counts.any() or levels >= histogram.bins:
        return symmetric_choice(histogram.full_amax, 1)
    divergences = window_divergences(counts, np.zeros_like(stops), stops, levels)
    found = _last_least(divergences)
    if found is None:
        return symmetric_choice(histogram.full_amax, 1)
    amax = min(float(stops[found]) * histogram.width, histogram.full_amax)
    return symmetric_choice(amax, int(np.isfinite(divergences).sum()))


def entropy_range(
    histogram: LinearHistogram, levels: int, *, start_bin: int = START_BIN, stride: int = STRIDE
) -> Choice:
    """The range, not symmetric, that keeps the values' distribution best.

    The two ends are searched in turn, each for the best of the other, until neither moves; docs/amax.md says
    what clipping both at one magnitude loses. Where one side is empty, this is ``entropy_amax`` of an
    unsigned format.

    Args:
        histogram: of the tensor.
        levels: that share the whole range: ``2^bits``.
        start_bin: how many bins on a side the first candidate keeps; a side with fewer is never clipped.
        stride: how many more each following one keeps.

    Edge case: As ``entropy_amax``.

    Example:
        >>> from ptq_cli.amax.linear_histogram import histogram_of_values
        >>> values = np.concatenate([np.linspace(-1, 2, 8001), [9.0]])
        >>> choice = entropy_range(histogram_of_values(values), levels=256)
        >>> choice.low, round(choice.high, 2)
        (-1.0, 2.0)
    """
    whole = Choice(histogram.low, histogram.high, 1)
    candidates = [
        side_candidates(counts, start_bin, stride) for counts in (histogram.negative, histogram.positive)
    ]
    sides = [int(ends[-1]) for ends in candidates]
    if not histogram.top or levels >= sum(sides):
        return whole
    negative, positive = histogram.negative[: sides[0]], histogram.positive[: sides[1]]
    counts = np.concatenate([without_spike(negative)[::-1], without_spike(positive)])
    if not counts.any():
        return whole
    kept, choices = list(sides), [1, 1]
    for turn in range(MOST_TURNS):
        side = (turn + 1) % 2
        ends, before = candidates[side], kept[side]
        other = np.full_like(ends, kept[1 - side])
        left, right = (ends, other) if side == 0 else (other, ends)
        divergences = window_divergences(counts, sides[0] - left, sides[0] + right, levels)
        found = _last_least(divergences)
        if found is not None:
            kept[side] = int(ends[found])
            choices[side] = int(np.isfinite(divergences).sum())
        if turn > 0 and kept[side] == before:
            break
    low = max(histogram.low, -kept[0] * histogram.width)
    high = min(histogram.high, kept[1] * histogram.width)
    return Choice(low, high, choices[0] * choices[1])


def without_spike(counts: Counts) -> Counts:
    """Counts with those of the first bin replaced by the second one's, as NVIDIA does.

    Every candidate maps the values next to 0 to 0, however many there are (half of a ReLU's, nearly all of a
    softmax's). Left as they are, they outweigh the distribution that the choice is about.

    Shapes: counts: (N,); the result has the same, and is a copy.

    Example:
        >>> without_spike(np.array([900, 5, 3])).tolist()
        [5, 5, 3]
    """
    copy = counts.copy()
    if copy.size > 1:
        copy[0] = copy[1]
    return copy


def _last_least(divergences: Divergences) -> int | None:
    """The last index of the smallest divergence, or None if all are infinite."""
    least = float(divergences.min())
    if not np.isfinite(least):
        return None
    return int(np.flatnonzero(divergences <= least + _SAME)[-1])


# Of fdlibm: log(2) as two numbers, and the terms of log((1 + s) / (1 - s)) / s - 2 in s^2.
_HIGH, _LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_TERMS = (
    *(6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01),
    *(2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01),
    1.479819860511658591e-01,
)
_ROOT_BITS = np.int64(0x3FE6A09E667F3BCD)  # of the root of 1/2
_ROOT_OFFSET, _MANTISSA = np.int64(0x3FF0000000000000) - _ROOT_BITS, np.int64(0x000FFFFFFFFFFFFF)


@compiled
def natural_log(x: float) -> float:  # pragma: no cover - compiled
    """The logarithm of a positive number, with the same bits on every processor.

    A library's may differ in the last bit from one processor to the other: it multiplies and adds in one
    rounding where that is fast. What is decided by sums of logarithms would then depend on it.

    Source: fdlibm, e_log.c: sums, products and quotients alone, less than one unit in the last place off.

    Example:
        >>> natural_log(1.0), natural_log(2.0), natural_log(10.0)
        (0.0, 0.6931471805599453, 2.302585092994046)
    """
    # The exponent that leaves a mantissa between the roots of 1/2 and of 2: bits, as frexp() takes as long
    # as all of the rest.
    bits = np.float64(x).view(np.int64) + _ROOT_OFFSET
    exponent = (bits >> 52) - 1023
    f = np.int64((bits & _MANTISSA) + _ROOT_BITS).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (_TERMS[1] + w * (_TERMS[3] + w * _TERMS[5]))
    odd = z * (_TERMS[0] + w * (_TERMS[2] + w * (_TERMS[4] + w * _TERMS[6])))
    half = 0.5 * f * f
    return exponent * _HIGH - ((half - (s * (half + (even + odd)) + exponent * _LOW)) - f)


@compiled
def window_divergences(
    counts: Counts, starts: _Indices, stops: _Indices, levels: int
) -> Divergences:  # pragma: no cover - compiled
    """The divergence of each window's quantized counts from the histogram.

    With prefix sums a window costs its levels, not its bins: within a group ``sum(p log q)`` is the group's
    sum times one logarithm, and ``sum(p log p)`` is a difference of prefix sums but for the end bins.

    The last window comes first. Of one that is sure to diverge more than the best until then, what is clipped
    alone is returned, which tells as much.

    Shapes: counts: (N,). starts, stops: (M,), in bins, the stop excluded. Result: (M,).
    """
    bins = counts.size
    below = np.zeros(bins + 1)
    occupied = np.zeros(bins + 1, np.int64)
    p_log_p = np.zeros(bins + 1)
    for index in range(bins):
        count = float(counts[index])
        below[index + 1] = below[index] + count
        occupied[index + 1] = occupied[index] + (counts[index] > 0)
        p_log_p[index + 1] = p_log_p[index] + (count * natural_log(count) if count > 0 else 0.0)
    total, least = below[bins], np.inf
    result = np.full(starts.size, np.inf)
    for window in range(starts.size - 1, -1, -1):
        start, stop = starts[window], stops[window]
        left, right = below[start], total - below[stop]
        if stop <= start or below[stop] - below[start] == 0.0:
            continue
        if (left > 0 and counts[start] == 0) or (right > 0 and counts[stop - 1] == 0):
            continue
        clipped = clipped_divergence(below, start, stop, levels) / total
        if clipped > least + BEYOND:
            result[window] = clipped
            continue
        # What is clipped joins the end bins; a window of one bin has one end bin.
        first, last = counts[start] + left, counts[stop - 1] + right
        log_p = p_log_p[stop - 1] - p_log_p[start + 1]
        if stop - start == 1:
            first, last, log_p = first + right, 0.0, 0.0
        if first > 0:
            log_p += first * natural_log(first)
        if last > 0:
            log_p += last * natural_log(last)
        log_q = quantized_logarithms(below, occupied, start, stop, levels)
        result[window] = (log_p - log_q - left - right) / total
        least = min(least, result[window])
    return result


@compiled
def clipped_divergence(
    below: _Floats, start: int, stop: int, levels: int
) -> float:  # pragma: no cover - compiled
    """The least that a window's counts diverge by, in counts: that of the sums of its end groups.

    No more is known of a window of one group.

    Shapes: below: (N + 1,), counts below each edge.
    """
    groups = min(levels, stop - start)
    if groups == 1:
        return 0.0
    left, right = below[start], below[-1] - below[stop]
    whole, rest = (stop - start) // groups, (stop - start) % groups
    first = below[start + whole + (rest > 0)] - below[start]
    last = below[stop] - below[stop - whole]
    found: float = -left - right
    if left > 0:
        found += (first + left) * natural_log((first + left) / first)
    if right > 0:
        found += (last + right) * natural_log((last + right) / last)
    return found


@compiled
def quantized_logarithms(
    below: _Floats, occupied: _Indices, start: int, stop: int, levels: int
) -> float:  # pragma: no cover - compiled
    """Return ``sum(p log q)`` over the bins of a window.

    Shapes: below, occupied: (N + 1,), counts and occupied bins below each edge.
    """
    left, right, found = below[start], below[-1] - below[stop], 0.0
    groups = min(levels, stop - start)
    # Bin j's group is floor(j * groups / size), so a group g ends at ceil((g + 1) * size / groups); that is
    # counted up here, because a division a group would take most of the time.
    whole, rest, over = (stop - start) // groups, (stop - start) % groups, 0
    begin = end = start
    for _ in range(groups):
        end += whole
        over += rest
        if over > 0:
            end += 1
            over -= groups
        inside = below[end] - below[begin]
        if inside > 0:
            mass = inside
            if begin == start:
                mass += left
            if end == stop:
                mass += right
            found += mass * natural_log(inside / (occupied[end] - occupied[begin]))
        begin = end
    return found
