"""How a calibration's tensors are shown: table rows for a person, values for ``--json``."""

import math
from typing import TYPE_CHECKING

from ptq_cli.cli.shown.calibration_lines import nonfinite_counts, nonfinite_values
from ptq_cli.cli.shown.documents.calibration_documents import MethodDocument, TensorDocument
from ptq_cli.cli.shown.terminal.output import CHOSEN, UNKNOWN
from ptq_cli.pipeline.views.calibration_view import shown_name
from ptq_cli.report.text.numbers import format_decibels, format_number, format_range, format_share
from ptq_cli.report.text.summary import Table

if TYPE_CHECKING:
    from ptq_cli.pipeline.views.calibration_view import CalibrationView, MethodView, TensorView


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


def tensor_values(tensor: "TensorView") -> TensorDocument:
    """Return a tensor for JSON."""
    statistics = tensor.statistics
    return {
        "name": tensor.name,
        "format": tensor.site.format.name,
        "symmetric": tensor.site.symmetric,
        "count": statistics.count,
        "zeros": tensor.zeros,
        "min": statistics.low,
        "max": statistics.high,
        "dead": tensor.dead,
        **nonfinite_values(statistics.nonfinite),
        "chosen": tensor.chosen,
        "percentile": tensor.settings.percentile,
        "methods": {name: _method_values(view) for name, view in tensor.methods.items()},
    }


def _method_values(view: "MethodView") -> MethodDocument:
    least, most = view.clipped or (None, None)
    error = view.error
    finite = error is not None and math.isfinite(error.sqnr_db)
    return {
        "amax": view.choice.amax,
        "low": view.choice.low,
        "high": view.choice.high,
        "candidates": view.choice.candidates,
        "scale": float(view.parameters.scale),
        "zero_point": int(view.parameters.zero_point),
        "clipped_at_least": least,
        "clipped_at_most": most,
        "mse": error.mse if error is not None else None,
        "mse_by_clipping": error.clipping if error is not None else None,
        "sqnr_db": error.sqnr_db if error is not None and finite else None,
    }
