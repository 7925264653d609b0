"""What all the layers that read a tensor want to know of it, collected as the tensor's values come."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ptq_cli.core.arithmetic import QuantParameters, quantize, scale_from_amax
from ptq_cli.core.formats import INT16
from ptq_cli.core.tensors import Array
from ptq_cli.recover.input_moments import InputMoments, InputSums
from ptq_cli.recover.layer_geometry import OUTSIDE, Window, spread
from ptq_cli.recover.quantized_layer import QuantizedLayer
from ptq_cli.recover.second_moments import Int64s

LOOKED_AT, FEWEST_CHANNELS = 64, 4
"""Values of an image that decide which of its positions are taken: at so many, in so many channels, which
any block of channels has."""


@dataclass(frozen=True, kw_only=True)
class InputReading:
    """How layers read a tensor: several may read it in the same way.

    Attributes:
        groups: parts of the channels that are apart from each other.
        size: inputs of each part.
        window: of a convolution; None for a product of matrices, all of whose rows are taken.
        each: of a convolution, how many output positions of each image are taken at most.
    """

    groups: int
    size: int
    window: Window | None
    each: int = 0

    @property
    def key(self) -> str:
        """All of it, as text."""
        text = f"{self.groups} x {self.size}"
        return f"{text}, {self.each} of {self.window}" if self.window is not None else text


@dataclass(frozen=True, kw_only=True)
class MomentSite:
    """A tensor whose moments are collected.

    Attributes:
        tensor: its name in the float model.
        parameters: the grid of integers that its readers read it on.
        readings: how they read it, each once.
    """

    tensor: str
    parameters: QuantParameters
    readings: tuple[InputReading, ...]

    @property
    def is_of_images(self) -> bool:
        """Whether all that reads it are convolutions."""
        return all(item.window is not None for item in self.readings)

    @property
    def grid(self) -> str:
        """The grid, as text; moments are of integers, and say nothing of those of another grid."""
        own = self.parameters
        return f"{own.format.name} {float(own.scale)!r} {int(own.zero_point)}"

    @property
    def nbytes(self) -> int:
        """How much memory collecting takes."""
        return sum(InputSums.nbytes(item.groups, item.size) for item in self.readings)


@dataclass(frozen=True, eq=False, kw_only=True)
class TensorMoments:
    """Moments of what layers read of a tensor.

    Attributes:
        grid: of the integers; see ``MomentSite``.
        readings: by ``InputReading.key``.
    """

    grid: str
    readings: Mapping[str, InputMoments] = field(repr=False)

    def merge(self, other: "TensorMoments") -> "TensorMoments":
        """Return the moments of both parts; exact, so the order does not matter."""
        if self.grid != other.grid or self.readings.keys() != other.readings.keys():
            raise ValueError(f"moments on the grid {self.grid} and on {other.grid} do not merge")
        merged = {key: item.merge(other.readings[key]) for key, item in self.readings.items()}
        return TensorMoments(grid=self.grid, readings=merged)


class TensorMomentCollector:
    """Collects the moments of one tensor.

    Which output positions of an image are taken depends on the image alone, so that it does not matter in
    which batch, and beside which other images, it comes. What is not taken is not looked at.
    """

    def __init__(self, site: MomentSite) -> None:
        self._site = site
        zero = int(site.parameters.zero_point)
        self._sums = [InputSums(groups=item.groups, size=item.size, zero=zero) for item in site.readings]
        self._tables: dict[tuple[int, tuple[int, ...]], Int64s] = {}

    def update(self, array: Array) -> bool:
        """Add a tensor's values; return False if one that is taken is NaN or infinite.

        NaN is read as -inf is.

        Shapes:
            array: (images, C, …) for convolutions, where several axes may make up C; otherwise (…, K).
        """
        finite = True
        for index, (reading, sums) in enumerate(zip(self._site.readings, self._sums, strict=True)):
            if reading.window is None:
                integers, fits = self._integers(array.reshape(-1, array.shape[-1]))
                sums.add(integers)
                finite = finite and fits
                continue
            axes = len(reading.window.kernel)
            spatial = array.shape[-axes:]
            flat = array.reshape(*array.shape[:-axes], math.prod(spatial))
            table = self._table(index, reading.window, spatial)
            for image in flat:
                rows, fits = self._window_rows(reading, table, image)
                sums.add(rows)
                finite = finite and fits
        return finite

    def statistics(self) -> TensorMoments:
        """Return what was collected so far."""
        pairs = zip(self._site.readings, self._sums, strict=True)
        found = {reading.key: sums.moments() for reading, sums in pairs}
        return TensorMoments(grid=self._site.grid, readings=found)

    def _integers(self, array: Array) -> tuple[Array, bool]:
        finite = bool(np.isfinite(array).all())
        floats = array if finite else np.where(np.isnan(array), -np.inf, array)
        return np.asarray(quantize(floats, self._site.parameters)), finite

    def _table(self, index: int, window: Window, taken: tuple[int, ...]) -> Int64s:
        key = (index, taken)
        if key not in self._tables:
            self._tables[key] = window.positions(taken, window.given(taken))
        return self._tables[key]

    def _window_rows(self, reading: InputReading, table: Int64s, image: Array) -> tuple[Array, bool]:
        """Return what some output positions of an image read, and whether all of it is finite.

        Shapes:
            table: (output positions, kernel size); image: (…, S), where the axes before S make up C; the
            result (rows, C * kernel size).
        """
        places = image.shape[-1]
        chosen = spread(len(table), reading.each, self._number(image))
        columns = table[chosen].T
        if columns.size >= places:  # Values that are read more than once are turned into integers once.
            integers, finite = self._integers(image)
            picked = integers.reshape(-1, places)[:, columns.ravel()]
        else:
            integers, finite = self._integers(image[..., columns.ravel()])
            picked = integers.reshape(-1, columns.size)
        outside = columns.ravel() == OUTSIDE
        if outside.any():
            picked[:, outside] = int(self._site.parameters.zero_point)
        return picked.reshape(-1, len(chosen)).T, finite

    def _number(self, image: Array) -> int:
        """Return a number that depends on an image: that of the sample is not known here."""
        places = spread(image.shape[-1], LOOKED_AT, 0)
        channels = image.reshape(-1, *image.shape[-2:])[0]  # Of the first block, if there are some.
        return int(self._integers(channels[:FEWEST_CHANNELS, places])[0].sum(dtype=np.int64))


def total_bytes(sites: Sequence[MomentSite]) -> int:
    """Return how much memory collecting the moments of several tensors takes."""
    return sum(site.nbytes for site in sites)


# Which tensors layers read, and how.


ROWS = 4096
"""Of a convolution with few inputs."""
ROWS_PER_INPUT = 4
"""Of one with many. Twice as many gained 0.2 dB on average of two networks with 8, 4 and 3 bits."""


def reading_of(layer: QuantizedLayer, samples: int) -> InputReading:
    """Return how a layer reads its input: of a convolution's images positions that make enough rows."""
    geometry = layer.geometry
    size = len(geometry.block)
    wanted = max(ROWS, ROWS_PER_INPUT * size)
    each = -(-wanted // max(samples, 1)) if geometry.window is not None else 0
    return InputReading(groups=geometry.groups, size=size, window=geometry.window, each=each)


def grid_of_input(layer: QuantizedLayer, largest: Mapping[str, float]) -> QuantParameters | None:
    """Return the grid of what a layer reads: floats get 16 bits; None if they were not measured."""
    if layer.parameters is not None:
        return layer.parameters
    if layer.reads not in largest:
        return None
    scale = np.asarray(scale_from_amax(largest[layer.reads], INT16), np.float32).reshape(())
    return QuantParameters(scale, np.zeros((), np.int64), INT16)


def moment_sites(
    layers: Iterable[QuantizedLayer], largest: Mapping[str, float], samples: int
) -> list[MomentSite]:
    """Return the tensors that some layers read; those whose range nobody knows are left out."""
    found: dict[str, MomentSite] = {}
    for layer in layers:
        parameters = grid_of_input(layer, largest)
        if parameters is None:
            continue
        reading, before = reading_of(layer, samples), found.get(layer.reads)
        readings = before.readings if before is not None else ()
        if reading not in readings:
            readings = (*readings, reading)
        found[layer.reads] = MomentSite(tensor=layer.reads, parameters=parameters, readings=readings)
    return list(found.values())
