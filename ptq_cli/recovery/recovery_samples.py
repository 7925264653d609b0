"""The samples of the calibration data that a pass learns from, and those that it is judged by."""

import math
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Protocol

import numpy as np

from ptq_cli.core.errors import OutputFileError
from ptq_cli.core.tensors import Array, is_array


@dataclass(frozen=True, kw_only=True)
class RecoverySamples:
    """What a pass learns from, and what it is judged by.

    Attributes:
        fit, decide: the model's inputs, in pieces of some samples each; no sample is in both.
    """

    fit: Sequence[Mapping[str, Array]]
    decide: Sequence[Mapping[str, Array]]

    @property
    def pieces(self) -> list[Mapping[str, Array]]:
        """All of them, those held out last."""
        return [*self.fit, *self.decide]

    @property
    def judge(self) -> list[Mapping[str, Array]]:
        """The last of them, which judge whether the model as a whole is better."""
        return self.pieces[self.first_judged :]

    @property
    def first_judged(self) -> int:
        """The first of the last pieces that have three eighths of the samples.

        Of fewer one or two make most of the noise; that what was learned fits its own samples alone is rarer.

        Example:
            >>> one, part = {"x": np.zeros((28, 1))}, {"x": np.zeros((4, 1))}
            >>> RecoverySamples(fit=[one] * 4, decide=[part] * 4).first_judged
            2
        """
        sizes = [samples_in(piece) for piece in self.pieces]
        enough = JUDGED * sum(sizes)
        fits = range(len(self.fit) + 1)
        return max(first for first in fits if not first or sum(sizes[first:]) >= enough)


def samples_in(piece: Mapping[str, Array]) -> int:
    """Return how many samples a piece has; 1 if none of its arrays has an axis."""
    return max((len(array) for array in piece.values() if array.ndim), default=1)


AT_ONCE = 1 << 23
"""Values of an output that are compared at once."""
JUDGED = 3 / 8
"""Least share of the samples that judge whether a model as a whole is better."""
SEVERAL = 2
"""Of fewer gains there is no deviation."""


# How far a model's outputs are from those of another, as one number.


def output_sqnr(wanted: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float:
    """Return the ratio of signal to noise of all outputs, in dB; noise counts as a share of its signal.

    Both have the outputs of each piece.

    Edge case:
        Of an output of integers, noise is the share of those that differ. An output of another shape than
        wanted, as of detections, is all noise. A sequence of arrays does not count. Equal outputs have
        infinitely many dB, NaN has minus infinity.
    """
    return sqnr_of([noise_of(one, other) for one, other in zip(wanted, found, strict=True)])


def lowest_sqnr(wanted: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float:
    """Return the SQNR of the worst output, in dB; otherwise as ``output_sqnr``.

    Example:
        >>> one, other = np.full(4, 10.0), np.full(4, 1.0)
        >>> wanted, found = [[one, other]], [[one + 1.0, other + 0.5]]
        >>> round(output_sqnr(wanted, found), 1), round(lowest_sqnr(wanted, found), 1)
        (8.9, 6.0)
    """
    shares = _shares([noise_of(one, other) for one, other in zip(wanted, found, strict=True)])
    return _decibels(math.nan if any(map(math.isnan, shares)) else max(shares, default=0.0))


Noise = Sequence[tuple[float, float]]
"""The signal and the noise of each output of one piece."""


def noise_of(wanted: Sequence[Array], found: Sequence[Array]) -> Noise:
    """Return what is known of a piece once its outputs are let go; see ``output_sqnr``."""
    return [_sums(one, other) for one, other in zip(wanted, found, strict=True) if is_array(one)]


def sqnr_of(pieces: Sequence[Noise]) -> float:
    """Return the ratio of signal to noise of all outputs, in dB; see ``output_sqnr``."""
    shares = _shares(pieces)
    return _decibels(math.fsum(shares) / len(shares) if shares else 0.0)


def _shares(pieces: Sequence[Noise]) -> list[float]:
    return [_share(output) for output in zip(*pieces, strict=True)]


def _decibels(noise: float) -> float:
    if math.isnan(noise):
        return -math.inf
    return -10.0 * math.log10(noise) if noise > 0.0 else math.inf


def gain_interval(before: Sequence[Noise], after: Sequence[Noise]) -> tuple[float, float]:
    """Return the ends of about a 95 % interval of by how many dB ``sqnr_of`` rises; of paired pieces.

    Two standard errors around the gain, found by leaving out each piece in turn: an SQNR may hang on one
    sample out of many, whose gain says nothing of the next.

    Edge case:
        Of one piece, both ends are the gain. Gains that are not finite, of outputs without noise, do not
        count.

    Source:
        Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 11, the jackknife.

    Example:
        >>> before, alike, one = (
        ...     [noise_of([np.full(4, 10.0)], [np.full(4, 10.0 + error)]) for error in errors]
        ...     for errors in [(1.0, 1.1, 1.2), (0.5, 0.5, 0.6), (1.1, 1.2, 0.1)]
        ... )
        >>> [round(end, 1) for end in gain_interval(before, alike)]
        [5.7, 6.8]
        >>> [round(end, 1) for end in gain_interval(before, one)]
        [-3.5, 6.2]
    """

    def gain(but: int | None) -> float:
        one, two = (
            math.fsum(
                _share([own for number, own in enumerate(output) if number != but])
                for output in zip(*pieces, strict=True)
            )
            for pieces in (before, after)
        )
        if one > 0.0 and two > 0.0:
            return 10.0 * math.log10(one / two)
        return math.inf if one > 0.0 and two == 0.0 else math.nan

    left_out = [found for but in range(len(before)) if math.isfinite(found := gain(but))]
    whole, count = gain(None), len(left_out)
    if len(before) < SEVERAL or count < SEVERAL or not math.isfinite(whole):
        return whole, whole
    error = math.sqrt((count - 1) / count * math.fsum((item - np.mean(left_out)) ** 2 for item in left_out))
    return whole - 2.0 * error, whole + 2.0 * error


def _sums(one: Array, other: Array) -> tuple[float, float]:
    """Return the signal and the noise of a piece's output; infinite noise where it has another shape."""
    if one.shape != other.shape:
        return 0.0, math.inf
    if one.dtype.kind != "f":
        return one.size, float(np.count_nonzero(one != other))
    if one.size > AT_ONCE and len(one) > 1:  # Logits are large, and three copies of them in float64 more so.
        parts = [_sums(one[row : row + 1], other[row : row + 1]) for row in range(len(one))]
        return math.fsum(signal for signal, _ in parts), math.fsum(noise for _, noise in parts)
    values = one.astype(np.float64)
    return float(np.sum(values * values)), float(np.sum((values - other.astype(np.float64)) ** 2))


def _share(sums: Iterable[tuple[float, float]]) -> float:
    signal = noise = 0.0
    for own_signal, own_noise in sums:
        if own_noise == math.inf:
            return 1.0
        signal, noise = signal + own_signal, noise + own_noise
    if signal > 0.0:
        return noise / signal
    return 0.0 if noise == 0.0 else 1.0


# What the metric that the user limits says of a quantized form, beside its SQNR.


@dataclass(frozen=True, kw_only=True)
class MetricGain:
    """How much better a metric is of one quantized form than of another, on the same samples."""

    name: Annotated[str, "The metric."]
    unit: Annotated[Literal["share", "decibel", "number"], "Of the values; a share is from 0 to 1."]
    before: Annotated[float, "The quantized model's value without the rung."]
    after: Annotated[float, "With it."]
    gain: Annotated[tuple[float, float], "The ends of the 95 % interval of the gain; above 0 is better."]

    @property
    def is_sure(self) -> bool:
        """Whether the interval tells a gain from a loss."""
        return self.gain[0] > 0.0 or self.gain[1] < 0.0

    def values(self) -> dict[str, object]:
        """Return it for the metadata of a model, in so many digits as no number of threads changes."""
        before, after, low, high = (float(f"{x:.4g}") for x in (self.before, self.after, *self.gain))
        return {"name": self.name, "values": [before, after], "gain": [low, high]}


class MetricWatch(Protocol):
    """Follows a metric over the outputs of one quantized form."""

    def add(self, outputs: Sequence[Array]) -> None:
        """Take the outputs of the next piece to decide by."""

    def gain_over(self, other: Any) -> MetricGain | None:
        """Return how much better this form is than another one's watch; None if samples cannot tell."""


# Arrays that wait until they are needed: in memory as far as it goes, then in a file.


IN_MEMORY = 2 << 30
"""Bytes, where no limit is given."""
LARGE = 1 << 24
"""Bytes; a file for less is not worth it."""


class Shelf:
    """Keeps arrays by key."""

    def __init__(self, folder: Path, *, limit: int = IN_MEMORY) -> None:
        """Keep ``limit`` bytes in memory, more in files without names, which go with the last reader."""
        self._folder, self._limit = folder, limit
        self._kept: dict[str, tuple[list[Array | None], int]] = {}
        self._filed: dict[str, _Filed] = {}
        self.held = 0
        self.moved = 0

    def __contains__(self, key: str) -> bool:
        """Return whether there are arrays under a key."""
        return key in self._kept or key in self._filed

    def put(self, key: str, arrays: Sequence[Array | None], *, away: bool = False) -> None:
        """Keep arrays under a key, in a file if they are large and wait long, which is meant by ``away``.

        Sequences of arrays, which ONNX has too, always stay in memory.
        """
        size = _size(arrays)
        fits = self.held + size <= self._limit and (size < LARGE or not away)
        if fits or not all(item is None or is_array(item) for item in arrays):
            self._kept[key] = list(arrays), size
            self.held += size
            return
        self._filed[key] = _Filed(self._folder, arrays)
        self.moved += size

    def get(self, key: str, index: int) -> Array | None:
        """Return one of a key's arrays; several threads may ask at once."""
        filed = self._filed.get(key)
        return filed.read(index) if filed is not None else self._kept[key][0][index]

    def let_go(self, key: str, index: int) -> None:
        """Let go of one of a key's arrays that is in memory; the others, and what they count for, stay."""
        if key in self._kept:
            self._kept[key][0][index] = None

    def drop(self, key: str) -> None:
        """Let go of a key, if it is there."""
        self.held -= self._kept.pop(key, ((), 0))[1]
        filed = self._filed.pop(key, None)
        if filed is not None:
            filed.close()


def _size(arrays: Sequence[Array | None]) -> int:
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


class _Filed:
    """Arrays in a file of their own."""

    def __init__(self, folder: Path, arrays: Sequence[Array | None]) -> None:
        self._places: list[tuple[int, np.dtype[np.generic], tuple[int, ...]] | None] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the next line closes it
            self._closed = weakref.finalize(self, self._file.close)
            for array in arrays:
                if array is None:
                    self._places.append(None)
                    continue
                self._places.append((self._file.tell(), array.dtype, array.shape))
                self._file.write(np.ascontiguousarray(array).tobytes())
            self._file.flush()
        except OSError as error:
            raise OutputFileError(
                f"cannot write in '{folder}': {(error.strerror or str(error)).lower()}",
                hint="free some space, pass fewer --samples, or a larger --set runtime.max_memory=SIZE",
            ) from error

    def read(self, index: int) -> Array | None:
        place = self._places[index]
        if place is None:
            return None
        offset, dtype, shape = place
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        # Copied, so that no part of the file stays mapped.
        return np.array(np.memmap(self._file, dtype, "r", offset, shape))

    def close(self) -> None:
        self._closed()
