"""What all the layers that read a tensor want to know of it, collected as the tensor's values come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ptq_cli.core.arithmetic import QuantParameters, quantize
from ptq_cli.core.tensors import Array
from ptq_cli.recovery.layer_geometry import Window, spread
from ptq_cli.recovery.layer_rows import gather
from ptq_cli.recovery.moments.input_moments import InputMoments, InputSums
from ptq_cli.recovery.search.second_moments import Int64s


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
        """All of it, as text.

        Example:
            >>> InputReading(groups=1, size=64, window=None).key
            '1 x 64'
        """
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
        """Return the moments of both parts; exact, so the order does not matter.

        Raises:
            ValueError: they are of other grids or readers.
        """
        if self.grid != other.grid or self.readings.keys() != other.readings.keys():
            raise ValueError(f"moments on the grid {self.grid} and on {other.grid} do not merge")
        merged = {key: item.merge(other.readings[key]) for key, item in self.readings.items()}
        return TensorMoments(grid=self.grid, readings=merged)


class TensorMomentCollector:
    """Collects the moments of one tensor.

    Which output positions of an image are taken depends on the image alone, so that it does not matter in
    which batch, and beside which other images, it comes.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> grid = QuantParameters(np.float32(0.5).reshape(()), np.int64(0).reshape(()), UINT8)
        >>> rows = InputReading(groups=1, size=2, window=None)
        >>> collector = TensorMomentCollector(MomentSite(tensor="x", parameters=grid, readings=(rows,)))
        >>> collector.update(np.array([[1.0, 2.0]], np.float32))
        True
        >>> collector.statistics().readings["1 x 2"].products.tolist()
        [[4, 8, 16]]
    """

    def __init__(self, site: MomentSite) -> None:
        """Begin with nothing.

        Args:
            site: the tensor.
        """
        self._site = site
        zero = int(site.parameters.zero_point)
        self._sums = [InputSums(groups=item.groups, size=item.size, zero=zero) for item in site.readings]
        self._tables: dict[tuple[int, tuple[int, ...]], Int64s] = {}

    def update(self, array: Array) -> bool:
        """Add a tensor's values; return False if one of them is NaN or infinite. NaN is read as -inf is.

        Shapes:
            array: (images, C, …) for convolutions, otherwise (…, K).
        """
        finite = bool(np.isfinite(array).all())
        floats = array if finite else np.where(np.isnan(array), -np.inf, array)
        integers = quantize(floats, self._site.parameters)
        for index, (reading, sums) in enumerate(zip(self._site.readings, self._sums, strict=True)):
            if reading.window is None:
                sums.add(np.array(integers.reshape(-1, integers.shape[-1])))
                continue
            for image in integers:
                sums.add(self._window_rows(index, reading, reading.window, image))
        return finite

    def statistics(self) -> TensorMoments:
        """Return what was collected so far."""
        pairs = zip(self._site.readings, self._sums, strict=True)
        found = {reading.key: sums.moments() for reading, sums in pairs}
        return TensorMoments(grid=self._site.grid, readings=found)

    def _window_rows(self, index: int, reading: InputReading, window: Window, image: Array) -> Array:
        key = (index, image.shape[1:])
        if key not in self._tables:
            self._tables[key] = window.positions(image.shape[1:], window.given(image.shape[1:]))
        table = self._tables[key]
        # The sum is as good a number as that of the sample, which is not known here.
        chosen = spread(len(table), reading.each, int(image.sum(dtype=np.int64)))
        image = np.ascontiguousarray(image)
        rows = np.empty((len(chosen), len(image) * table.shape[1]), image.dtype)
        outside = image.dtype.type(int(self._site.parameters.zero_point))
        gather(image.reshape(len(image), -1), table[chosen], outside, rows)
        return rows


def total_bytes(sites: Sequence[MomentSite]) -> int:
    """Return how much memory collecting the moments of several tensors takes."""
    return sum(site.nbytes for site in sites)
