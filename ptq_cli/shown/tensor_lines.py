"""What ``ptq inspect`` shows of a run: its calibration's tensors, or one of them with its histogram."""

import math
import shutil
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice, counts_between, signed_bins
from ptq_cli.core.words import format_count
from ptq_cli.pipeline.calibration_view import shown_name
from ptq_cli.report.text.numbers import Table, format_decibels, format_number, format_range, format_share
from ptq_cli.shown.export_lines import nonfinite_counts
from ptq_cli.terminal.output import CHOSEN, PIPE_WIDTH, UNKNOWN, print_table, say, tell
from ptq_cli.terminal.phrases import counted, shown_path

if TYPE_CHECKING:
    from ptq_cli.evaluation.document.report_document import LayerEntry
    from ptq_cli.pipeline.calibration_view import CalibrationView, Explanation, MethodView, TensorView


MARGIN = 14
NARROWEST = 16
LABEL = MARGIN - 2


def axis_labels(low: float, high: float, columns: int) -> str:
    """Write both ends of the axis, and 0 if there is room for it between them.

    Example:
        >>> axis_labels(-1.0, 3.0, 20)
        '-1   0             3'
        >>> axis_labels(0.0, 3.0, 20)
        '0                  3'
    """
    left, right = format_number(low), format_number(high)
    line = left.ljust(columns - len(right)) + right
    zero = round(-low / (high - low) * (columns - 1))
    if len(left) < zero < columns - len(right) - 1 and line[zero - 1 : zero + 2].isspace():
        line = line[:zero] + "0" + line[zero + 1 :]
    return line


_BARS = " ▁▂▃▄▅▆▇█"
_PARTS = len(_BARS) - 1
ROWS = 12
_Counts = npt.NDArray[np.float64]


def draw_histogram(tensor: "TensorView", width: int) -> list[str]:
    """Return the lines of a drawing that is ``width`` columns wide, or a line that says why there is none.

    The counts have a log scale, and the drawing says so, if on a linear scale a quarter of the columns that
    hold values would look empty. Zeros are not drawn, because after a ReLU they would be the only bar. The
    drawing says their share.
    """
    statistics, histogram = tensor.statistics, tensor.statistics.histogram
    if histogram is None:
        return ["no histogram: this calibration kept only ranges"]
    if statistics.unseen:
        return ["no histogram: there were no values"]
    if not histogram.counts.size:
        return [f"no histogram: {'no value is finite' if statistics.rangeless else 'all values are 0'}"]
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    columns = max(width - MARGIN - 1, NARROWEST)
    edges = np.linspace(low, high, columns + 1)
    counts = counts_between(signed_bins(statistics, histogram), edges)
    is_log = needs_log(counts)
    scale = "log scale" if is_log else "linear scale"
    zeros = (
        f"; zeros ({format_share(statistics.zeros, statistics.count)}) are not drawn"
        if statistics.zeros
        else ""
    )
    return [
        f"count of values, {scale}{zeros}",
        *_bars(counts, is_log=is_log),
        f"{'1' if is_log else '0':>{LABEL}} └{'─' * columns}",
        " " * MARGIN + axis_labels(low, high, columns),
        *(
            f"{_label(tensor, name):>{LABEL}}  {_span(view.choice, low, high, columns)}"
            for name, view in tensor.methods.items()
        ),
    ]


def needs_log(counts: _Counts) -> bool:
    """Return whether a linear scale would make a quarter of the columns that hold values look empty.

    Example:
        >>> needs_log(np.array([5.0, 9.0, 7.0])), needs_log(np.array([1.0, 2.0, 1e6, 3.0]))
        (False, True)
    """
    held = counts[counts > 0]
    unseen = np.count_nonzero(held < counts.max() / (2 * _PARTS * ROWS))
    return bool(unseen * 4 >= held.size)


def _bars(counts: _Counts, *, is_log: bool) -> list[str]:
    top = float(counts.max())
    shares = np.log(np.maximum(counts, 1.0)) / max(math.log(max(top, 1.0)), 1e-9) if is_log else counts / top
    # A column that holds a value is visible.
    heights = np.where(counts > 0, np.maximum(np.rint(shares * ROWS * _PARTS), 1), 0).astype(int)
    lines = []
    for row in range(ROWS, 0, -1):
        filled = np.clip(heights - (row - 1) * _PARTS, 0, _PARTS)
        bars = "".join(_BARS[part] for part in filled)
        share = row / ROWS
        value = top**share if is_log else top * share
        label = format_count(value) if row in (ROWS, ROWS * 2 // 3, ROWS // 3) else ""
        lines.append(f"{label:>{LABEL}} │{bars}".rstrip())
    return lines


def _span(choice: Choice, low: float, high: float, columns: int) -> str:
    """Draw a range as ``├──┤``; an end beyond the drawing is an arrow."""
    first, last = (round((end - low) / (high - low) * (columns - 1)) for end in (choice.low, choice.high))
    left = "◄" if first < 0 else "├"
    right = "►" if last > columns - 1 else "┤"
    first, last = max(first, 0), min(last, columns - 1)
    if first >= last:
        return " " * first + "│"
    return " " * first + left + "─" * (last - first - 1) + right


def _label(tensor: "TensorView", method: str) -> str:
    return f"{method} {CHOSEN}" if method == tensor.chosen else method


def print_calibration_view(view: "CalibrationView") -> None:
    """Print each measured tensor: range, amax by method, clipped share and zeros."""
    tensors = view.tensors
    methods = tuple(method for method in view.methods if method not in view.missing)
    samples = counted(view.samples, "sample")
    measured = f"{counted(len(tensors), 'tensor')} for {view.target}, measured on {samples}"
    say(f"{measured}, statistics: {view.collector}")
    columns = 2 + len(methods)
    left_out = print_table(
        tensor_table(tensors, methods),
        right=tuple(range(1, columns + 2)),
        whole=tuple(range(1, columns + 2)),
        # The zeros are the first to go, then the range: the largest magnitude is max's amax.
        optional=(columns + 1, columns),
    )
    say(f"amax by method; {CHOSEN} marks what ptq export uses")
    say("clipped and zeros are shares of all values")
    if left_out:
        tell(f"the terminal is too narrow for: {listed(left_out)}; --json has them")
    for note in notes(view, tensors):
        say(note)


def print_explanation(found: "Explanation") -> None:
    """Print one tensor: where it comes from, its histogram, and each method's range and error."""
    tensor, statistics = found.tensor, found.tensor.statistics
    kind = "symmetric" if tensor.site.symmetric else "with a zero point"
    say(shown_name(str(found.spec)))
    say(f"becomes:    {tensor.site.format.name} {kind}")
    whole = "its nested graph" if found.nested else "the model"
    say(f"comes from: {_node(found.producer) if found.producer is not None else f'an input of {whole}'}")
    readers = [_node(reader) for reader in found.readers] + [f"an output of {whole}"] * found.is_output
    say(f"read by:    {', '.join(readers)}")
    for node in filter(None, (found.producer, *found.readers)):
        if node.reason:
            say(f"in float:   {shown_name(node.name)}: {shown_name(node.reason)}")
    if found.sharing:
        say(f"shared by:  {', '.join(map(shown_name, found.sharing))}")
    zeros = "" if tensor.zeros is None else f", {format_share(tensor.zeros, statistics.count)} zeros"
    samples = counted(found.calibration.samples, "sample")
    values = format_range(statistics.low, statistics.high)
    say(f"values:     {statistics.count:,} in {samples}, {values}{zeros}\n")
    for line in draw_histogram(tensor, shutil.get_terminal_size((PIPE_WIDTH, 0)).columns):
        say(line)
    columns = tuple(range(8))
    if not statistics.unseen:
        table = method_table(tensor)
        left_out = print_table(table, right=columns[1:], whole=columns, optional=(3, *columns[5:]))
        say(f"{CHOSEN} marks what ptq export uses; mse and SQNR are estimated from the histogram")
        if left_out:
            tell(f"the terminal is too narrow for: {listed(left_out)}; --json has them")
    for note in notes(found.calibration, (tensor,)):
        say(note)
    if found.plot is not None:
        say(f"wrote {shown_path(found.plot)}")


def _node(node: "LayerEntry") -> str:
    return f"{shown_name(node.name)} ({shown_name(node.op)}, {'integer' if node.integer else 'float'})"


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
