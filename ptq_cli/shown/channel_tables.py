"""The tables of ``ptq inspect`` of a run: tensors, methods, channels, notes."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ptq_cli.core.words import few
from ptq_cli.pipeline.calibration_view import shown_name
from ptq_cli.pipeline.channel_view import dead_channels, imbalance_of
from ptq_cli.report.text.numbers import Table, format_decibels, format_number, format_range, format_share
from ptq_cli.shown.quantization_lines import nonfinite_counts
from ptq_cli.terminal.output import CHOSEN, UNKNOWN

if TYPE_CHECKING:
    from ptq_cli.collectors.channel_statistics import ChannelStatistics
    from ptq_cli.pipeline.calibration_view import CalibrationView, MethodView, TensorView
    from ptq_cli.pipeline.channel_view import ChannelsView


_BARS = "▁▂▃▄▅▆▇█"
INDENT = 12
_LARGEST, _SMALLEST = 5, 3
SHOWN = 8


def channel_lines(view: "ChannelsView", target: str, width: int) -> list[str]:
    """Return lines that compare the channels' ranges, with a bar for each channel.

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
        lines.append(f"dead:       {few([*map(str, view.dead)], SHOWN)}: 0 in every sample")
    if view.rangeless:
        lines.append(f"not finite: {few([*map(str, view.rangeless)], SHOWN)}: no finite value")
    return [*lines, f"{target} quantizes activations per tensor: ptq export gives all channels one scale"]


def _bars(amax: Any, columns: int) -> str:
    parts = np.array_split(amax, min(columns, amax.size))
    tops = np.array([part.max() for part in parts])
    # A channel of only zeros has no bar; every other channel has one.
    heights = np.ceil(tops / tops.max() * len(_BARS)).astype(int)
    return "".join(_BARS[height - 1] if height else " " for height in heights)


def channel_table(tensor: "TensorView", view: "ChannelsView") -> Table:
    """Return rows of the channels with the largest and the smallest amax, without the dead ones."""
    order = [index for index in np.argsort(-view.amax, kind="stable").tolist() if view.amax[index] > 0]
    shown = order if len(order) <= _LARGEST + _SMALLEST + 1 else [*order[:_LARGEST], *order[-_SMALLEST:]]
    rows = [_channel_row(tensor, view, index) for index in shown]
    if len(shown) < len(order):
        rows.insert(_LARGEST, ("…",) * 6)
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


def format_clipped(clipped: tuple[int, int] | None, total: int) -> str:
    r"""Write the share of clipped values; if the range ends inside a bin, the largest that it can be.

    Example:
        >>> format_clipped((1, 1), 8), format_clipped((0, 1), 8), format_clipped(None, 8)
        ('12.5 %', '≤12.5 %', '\u2013')
        >>> format_clipped((0, 1), 10**9)
        '<0.0001 %'
    """
    if clipped is None:
        return UNKNOWN
    least, most = (format_share(count, total) for count in clipped)
    return most if least == most or most.startswith("<") else f"≤{most}"


def tensor_table(tensors: "tuple[TensorView, ...]", methods: tuple[str, ...]) -> Table:
    """Return a row for each tensor: name, clipped share, amax by each method, zero share, range."""
    header = ("tensor", "clipped", *methods, "zeros", "range")
    return Table(header, tuple(_tensor_row(tensor, methods) for tensor in tensors))


def _tensor_row(tensor: "TensorView", methods: tuple[str, ...]) -> tuple[str, ...]:
    statistics = tensor.statistics
    zeros = UNKNOWN if tensor.zeros is None else format_share(tensor.zeros, statistics.count)
    return (
        shown_name(tensor.name),
        format_clipped(tensor.clipped, statistics.count),
        *(_amax_cell(tensor, method) for method in methods),
        zeros,
        _range_cell(tensor),
    )


def _range_cell(tensor: "TensorView") -> str:
    if tensor.statistics.rangeless:
        return "not finite"
    if tensor.statistics.unseen:
        return "no values"
    return "dead" if tensor.dead else format_range(tensor.statistics.low, tensor.statistics.high)


def _amax_cell(tensor: "TensorView", method: str) -> str:
    if tensor.statistics.unseen:
        return f"{UNKNOWN} "
    # A space in place of the mark keeps the numbers aligned.
    mark = CHOSEN if method == tensor.chosen else " "
    return format_number(tensor.methods[method].choice.amax) + mark


def method_table(tensor: "TensorView") -> Table:
    """Return a row for each method: the range that it chooses, and the error with the format's bits."""
    header = ("method", "range", "clipped", "mse", "SQNR", "by clipping", "scale", "zero point")
    rows = tuple(_method_row(tensor, view) for view in tensor.methods.values())
    return Table(header, rows)


def _method_row(tensor: "TensorView", view: "MethodView") -> tuple[str, ...]:
    error = view.error
    costs = (UNKNOWN,) * 3
    if error is not None:
        part = f"{100 * error.clipping / error.mse:.1f} %" if error.mse else "0 %"
        costs = (format_number(error.mse), format_decibels(error.sqnr_db), part)
    return (
        method_label(tensor, view.method),
        format_range(view.choice.low, view.choice.high),
        format_clipped(view.clipped, tensor.statistics.count),
        *costs,
        format_number(float(view.parameters.scale)),
        str(int(view.parameters.zero_point)),
    )


def method_label(tensor: "TensorView", method: str) -> str:
    """Write a method with its parameter, and a mark if it is the chosen one."""
    name = f"{method} {tensor.settings.percentile:g}" if method == "percentile" else method
    return f"{name} {CHOSEN}" if method == tensor.chosen else name


def notes(view: "CalibrationView", tensors: "tuple[TensorView, ...]") -> list[str]:
    """Return notes on the tensors that the table has no column for."""
    found = []
    kept = [method for method in view.methods if method not in view.missing]
    if view.missing:
        found.append(
            f"note: {listed(view.missing)} need histograms, and this calibration kept only ranges; "
            "run ptq calibrate --method histogram to keep them"
        )
    refused = [tensor for tensor in tensors if tensor.chosen in view.missing]
    if refused:
        first, more = refused[0], f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        found.append(f"note: ptq export will fail: '{shown_name(first.name)}'{more} would use {first.chosen}")
    found += [f"note: '{shown_name(tensor.name)}' was 0 in every sample" for tensor in tensors if tensor.dead]
    found += [nonfinite_note(tensor) for tensor in tensors if tensor.statistics.nonfinite.total]
    unseen = [shown_name(tensor.name) for tensor in tensors if tensor.statistics.unseen]
    never = "had no values: the graph that it is in was never run, so its layers stay in float"
    found += [f"note: '{name}' {never}" for name in unseen]
    for tensor in tensors:
        if tensor.dead or tensor.statistics.unseen:
            continue
        single = [name for name in kept if tensor.methods[name].choice.candidates == 1]
        if single:
            name = shown_name(tensor.name)
            found.append(f"note: {listed(single)} had only one candidate for '{name}': its whole range")
    return found


def nonfinite_note(tensor: "TensorView") -> str:
    """Return how many of a tensor's values were not finite, and the consequence."""
    statistics, total = tensor.statistics, tensor.statistics.nonfinite.total
    name, counts = shown_name(tensor.name), nonfinite_counts(statistics.nonfinite)
    if statistics.rangeless:
        return f"warning: '{name}' contained {counts} and no finite value; ptq export will fail"
    share = format_share(total, statistics.count + total)
    return (
        f"warning: '{name}' contained {counts} ({share} of its values); its range covers only the finite ones"
    )


def listed(names: "tuple[str, ...] | list[str]") -> str:
    """Write names as a list in a sentence.

    Example:
        >>> listed(["percentile", "entropy", "mse"]), listed(["mse"])
        ('percentile, entropy and mse', 'mse')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
