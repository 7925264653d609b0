"""The collectors by the name that ``--method`` takes."""

from collections.abc import Callable

from ptq_cli.collectors.channel_collector import ChannelCollector
from ptq_cli.collectors.collector import Collector
from ptq_cli.collectors.extended import ExtendedCollector
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.core.known_names import require_known

COLLECTORS: dict[str, Callable[[], Collector]] = {"histogram": HistogramCollector, "max": MaxCollector}


def make_collector(
    method: str, *, name: str = "", axis: int | None = None, allow_nonfinite: bool = False
) -> Collector:
    """Return a new collector.

    Args:
        method: which statistics it keeps.
        name: of the tensor, for messages.
        axis: also keep statistics of each channel along this axis, or None.
        allow_nonfinite: NaN and infinities are counted rather than refused.

    Raises:
        UnknownNameError: there is no collector with that name.

    Example:
        >>> make_collector("max").statistics().count
        0
    """
    require_known("method", method, COLLECTORS)
    collector = COLLECTORS[method]()
    if axis is None and not allow_nonfinite:
        return collector
    channels = None
    if axis is not None:
        channels = ChannelCollector(axis, histograms=method == "histogram", name=name)
    return ExtendedCollector(collector, channels, allow_nonfinite=allow_nonfinite)
