"""The channels of one tensor: what was measured of each, and the range that a method gives it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.decide import Decision
from ptq_cli.collectors.channel_statistics import ChannelStatistics
from ptq_cli.core.documents import HIDDEN


@dataclass(frozen=True)
class ChannelsView:
    """The channels of a tensor.

    Example:
        >>> from ptq_cli.amax.decide import decide_channels
        >>> from ptq_cli.collectors.channel_collector import ChannelCollector
        >>> from ptq_cli.core.formats import UINT8
        >>> from ptq_cli.recipe.sections import AmaxSettings
        >>> collector = ChannelCollector(1)
        >>> collector.update(np.float32([[1.0, -8.0, 0.0, 2.0], [2.0, 3.0, 0.0, 1.0]]))
        >>> statistics = collector.statistics()
        >>> found = decide_channels(statistics, AmaxSettings(method="max"), UINT8, symmetric=False)
        >>> view = ChannelsView(statistics, "max", found)
        >>> view.amax.tolist(), view.imbalance, view.dead
        ([2.0, 8.0, 0.0, 2.0], 4.0, (2,))
    """

    DERIVED: ClassVar[tuple[str, ...]] = (
        "axis",
        "size",
        "imbalance",
        "dead",
        "rangeless",
        "count",
        "zeros",
        "minimum",
        "maximum",
        "amax",
        "low",
        "high",
        "scale",
        "zero_point",
    )

    statistics: Annotated[ChannelStatistics, HIDDEN]
    method: Annotated[str, "The method that decided; empty if none was asked."] = ""
    decisions: Annotated[tuple[Decision, ...], HIDDEN] = ()

    @property
    def axis(self) -> int:
        """The axis of the channels."""
        return self.statistics.axis

    @property
    def size(self) -> int:
        """How many channels there are; each list has as many entries."""
        return self.statistics.size

    @property
    def count(self) -> tuple[int, ...]:
        """How many values each channel had."""
        return tuple(self.statistics.count.tolist())

    @property
    def zeros(self) -> tuple[int, ...] | None:
        """How many of them were 0; null without histograms."""
        return tuple(self.statistics.zeros.tolist()) if self.statistics.histograms is not None else None

    @property
    def minimum(self) -> npt.NDArray[np.float32]:
        """The smallest value of each channel; inf of one that had none."""
        return self.statistics.minimum

    @property
    def maximum(self) -> npt.NDArray[np.float32]:
        """The largest value of each channel; -inf of one that had none."""
        return self.statistics.maximum

    @property
    def low(self) -> tuple[float, ...]:
        """The lower end of each range that the method chose."""
        return tuple(item.choice.low for item in self.decisions)

    @property
    def high(self) -> tuple[float, ...]:
        """The upper end of each range."""
        return tuple(item.choice.high for item in self.decisions)

    @property
    def scale(self) -> tuple[float, ...]:
        """The scales that follow."""
        return tuple(float(item.parameters.scale) for item in self.decisions)

    @property
    def zero_point(self) -> tuple[int, ...]:
        """The zero points that follow."""
        return tuple(int(item.parameters.zero_point) for item in self.decisions)

    @property
    def amax(self) -> npt.NDArray[np.float64]:
        """The larger end of each range; the largest magnitude of each channel if no method decided."""
        if not self.decisions:
            return self.statistics.amax
        return np.array([item.choice.amax for item in self.decisions]) + 0.0  # No -0.0.

    @property
    def imbalance(self) -> float | None:
        """The largest amax over the median one; see ``imbalance_of``."""
        return imbalance_of(self.amax)

    @property
    def dead(self) -> tuple[int, ...]:
        """The channels that were 0 in every sample."""
        return dead_channels(self.statistics)

    @property
    def rangeless(self) -> tuple[int, ...]:
        """The channels that never had a finite value."""
        return tuple(np.flatnonzero(self.statistics.count == 0).tolist())


def imbalance_of(amax: npt.NDArray[np.float64]) -> float | None:
    """Return the largest amax over the median of those above 0, or None if there is none.

    One scale for the whole tensor serves the largest channel; a channel whose amax is so many times smaller
    has as many times fewer levels.

    Shapes:
        amax: (C,).

    Example:
        >>> imbalance_of(np.array([1.0, 2.0, 12.0, 0.0])), imbalance_of(np.zeros(3))
        (6.0, None)
    """
    held = amax[amax > 0]
    return float(held.max() / np.median(held)) if held.size else None


def dead_channels(statistics: ChannelStatistics) -> tuple[int, ...]:
    """Return the channels whose every finite value was 0."""
    return tuple(np.flatnonzero((statistics.count > 0) & (statistics.amax == 0)).tolist())
