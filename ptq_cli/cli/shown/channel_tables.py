"""How the channels of a tensor are shown: a drawing and a table for a person, values for ``--json``."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ptq_cli.cli.shown.terminal.output import UNKNOWN
from ptq_cli.pipeline.views.calibration_view import shown_name
from ptq_cli.pipeline.views.channel_view import dead_channels, imbalance_of, rangeless_channels
from ptq_cli.report.text.numbers import format_number, format_range, format_share
from ptq_cli.report.text.summary import Table

if TYPE_CHECKING:
    from ptq_cli.cli.shown.documents.calibration_documents import ChannelsDocument
    from ptq_cli.collectors.statistics.channel_statistics import ChannelStatistics
    from ptq_cli.pipeline.views.calibration_view import TensorView
    from ptq_cli.pipeline.views.channel_view import ChannelsView

BARS = "▁▂▃▄▅▆▇█"
INDENT = 12
LARGEST, SMALLEST = 5, 3
SHOWN = 8


def channel_lines(view: "ChannelsView", target: str, width: int) -> list[str]:
    """Return lines that compare the channels' ranges, with a bar for each channel.

    Edge case:
        If there are more channels than columns, several share a bar, as high as the largest of them.
    """
    statistics = view.statistics
    lines = [f"channels:   {statistics.size} along axis {statistics.axis}, amax by {view.method}"]
    imbalance = view.imbalance
    if imbalance is not None:
        amax = view.amax[view.amax > 0]
        ends = format_range(float(amax.min()), float(amax.max()))
        lines[0] += f": {ends}, median {format_number(float(np.median(amax)))}"
        lines.append(f"imbalance:  {format_number(imbalance)}, the largest amax divided by the median")
        lines.append(" " * INDENT + _bars(view.amax, max(width - INDENT - 1, 8)))
    if view.dead:
        lines.append(f"dead:       {_listed(view.dead)}: 0 in every sample")
    if view.rangeless:
        lines.append(f"not finite: {_listed(view.rangeless)}: no finite value")
    return [*lines, f"{target} quantizes activations per tensor: ptq export gives all channels one scale"]


def _bars(amax: Any, columns: int) -> str:
    parts = np.array_split(amax, min(columns, amax.size))
    tops = np.array([part.max() for part in parts])
    # A channel of only zeros has no bar; every other channel has one.
    heights = np.ceil(tops / tops.max() * len(BARS)).astype(int)
    return "".join(BARS[height - 1] if height else " " for height in heights)


def _listed(numbers: tuple[int, ...]) -> str:
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return f"{', '.join(map(str, numbers[:SHOWN]))}{more}"


def channel_table(tensor: "TensorView", view: "ChannelsView") -> Table:
    """Return rows of the channels with the largest and the smallest amax, without the dead ones."""
    order = [index for index in np.argsort(-view.amax, kind="stable").tolist() if view.amax[index] > 0]
    shown = order if len(order) <= LARGEST + SMALLEST + 1 else [*order[:LARGEST], *order[-SMALLEST:]]
    rows = [_channel_row(tensor, view, index) for index in shown]
    if len(shown) < len(order):
        rows.insert(LARGEST, ("…",) * 6)
    return Table(("channel", "range", "amax", "share of tensor", "zeros", "scale"), tuple(rows))


def _channel_row(tensor: "TensorView", view: "ChannelsView", index: int) -> tuple[str, ...]:
    statistics, decision = view.statistics, view.decisions[index]
    whole = tensor.methods[view.method].choice.amax
    zeros = format_share(int(statistics.zeros[index]), int(statistics.count[index]))
    return (
        str(index),
        format_range(float(statistics.minimum[index]), float(statistics.maximum[index])),
        format_number(decision.choice.amax),
        f"{100 * decision.choice.amax / whole:.3g} %" if whole else "",
        zeros if statistics.histograms is not None else "",
        format_number(float(decision.parameters.scale)),
    )


def channels_table(tensors: "tuple[TensorView, ...]") -> Table:
    """Return a row for each tensor whose channels were measured, with their largest magnitudes."""
    header = ("tensor", "axis", "channels", "dead", "smallest", "median", "largest", "imbalance")
    rows = []
    for tensor in tensors:
        channels = tensor.statistics.channels
        if channels is not None:
            rows.append((shown_name(tensor.name), *_channels_row(channels)))
    return Table(header, tuple(rows))


def _channels_row(channels: "ChannelStatistics") -> tuple[str, ...]:
    amax = channels.amax[channels.amax > 0]
    sizes = (amax.min(), np.median(amax), amax.max()) if amax.size else (0.0, 0.0, 0.0)
    imbalance = imbalance_of(channels.amax)
    return (
        str(channels.axis),
        str(channels.size),
        str(len(dead_channels(channels))),
        *(format_number(float(size)) for size in sizes),
        format_number(imbalance) if imbalance is not None else UNKNOWN,
    )


def measured_values(channels: "ChannelStatistics | None") -> "ChannelsDocument | None":
    """Return what was measured of a tensor's channels, for JSON; each list has one entry per channel."""
    if channels is None:
        return None
    seen = channels.count > 0
    return {
        "axis": channels.axis,
        "size": channels.size,
        "imbalance": imbalance_of(channels.amax),
        "dead": list(dead_channels(channels)),
        "without_finite_value": list(rangeless_channels(channels)),
        "count": channels.count.tolist(),
        "zeros": channels.zeros.tolist() if channels.histograms is not None else None,
        "min": [float(low) if held else None for low, held in zip(channels.minimum, seen, strict=True)],
        "max": [float(high) if held else None for high, held in zip(channels.maximum, seen, strict=True)],
    }


def decided_values(view: "ChannelsView") -> dict[str, Any]:
    """Return what a method chooses for a tensor's channels, as a ``DecidedChannelsDocument``."""
    measured: dict[str, Any] = {**(measured_values(view.statistics) or {})}
    return {
        **measured,
        "imbalance": view.imbalance,
        "method": view.method,
        "amax": view.amax.tolist(),
        "low": [item.choice.low for item in view.decisions],
        "high": [item.choice.high for item in view.decisions],
        "scale": [float(item.parameters.scale) for item in view.decisions],
        "zero_point": [int(item.parameters.zero_point) for item in view.decisions],
    }
