"""How an inspection is shown: as a tree, or as a list."""

from collections.abc import Iterator, Sequence

from ptq_cli.core.tensors import format_shape
from ptq_cli.core.words import format_count
from ptq_cli.pipeline.run_inspect import Inspection
from ptq_cli.report.text.layer_tree import NAMED, TreeLayer, TreeRow, layer_tree
from ptq_cli.report.text.numbers import Table, format_share
from ptq_cli.terminal.output import print_table, say
from ptq_cli.terminal.phrases import counting_notes

_MOST_REASONS = 20
_MOST_UNKNOWN = 5
_HEADER = ("layer", "op", "output", "parameters", "mult.-acc.", "as", "reason")
_RIGHT, _WHOLE, OPTIONAL = (3, 4), (0, 1, 2, 3, 4, 5), (1, 2, 6)


def print_inspection(result: Inspection, *, depth: int | None, show_all: bool) -> None:
    """Print the tree, or every layer with ``show_all``; then what stays float and why, and the totals."""
    say(f"{result.file.path.name}: {result.file.kind.value}, {result.parameters:,} parameters")
    say(f"inputs:  {', '.join(map(str, result.inputs))}")
    say(f"outputs: {', '.join(map(str, result.outputs))}")
    for note in result.notes:
        say(f"note: {note}")
    layers = list(tree_layers(result))
    if show_all:
        rows = tuple(_cells(layer, layer.name) for layer in layers)
        print_table(Table(_HEADER, rows), right=_RIGHT, whole=_WHOLE, optional=(1, 2, 3, 4))
    else:
        found, cut = layer_tree(layers, depth)
        rows = tuple(_row_cells(row) for row in found)
        print_table(Table(_HEADER, rows), right=_RIGHT, whole=_WHOLE, optional=OPTIONAL)
        if cut is not None and depth is None:
            say(f"showing modules {cut} deep; --depth N shows more, --all shows every layer")
        _print_reasons(layers)
    _print_totals(result, layers)


def tree_layers(result: Inspection) -> Iterator[TreeLayer]:
    """Yield the layers as the tree shows them."""
    for layer in result.plan.layers:
        formats = str(result.formats.get(layer.name, ""))
        inside = "part" if layer.reason.startswith(("part of", "bias of")) else "integer"
        placed = (formats or inside) if layer.quantized else "float"
        if not layer.quantized and not layer.weight and (weight := result.formats[layer.name].weight):
            placed = f"float x {weight}"
        yield TreeLayer(
            name=layer.name,
            op=layer.op,
            output=format_shape(shape) if (shape := result.shapes[layer.name]) is not None else "",
            parameters=layer.parameters,
            multiply_accumulates=result.work.counts[layer.name],
            placed="; ".join(filter(None, (placed, layer.weight))),
            integer=layer.quantized,
            reason=layer.reason,
            constants=result.constants.get(layer.name, {}),
        )


def _cells(layer: TreeLayer, label: str) -> tuple[str, ...]:
    return (
        label,
        layer.op,
        layer.output,
        f"{layer.parameters:,}" if layer.parameters else "",
        _work(layer.multiply_accumulates),
        layer.placed,
        layer.reason,
    )


def _row_cells(row: TreeRow) -> tuple[str, ...]:
    label = f"{'  ' * row.depth}{row.label}"
    if row.layer is not None and row.layers == 1:
        return _cells(row.layer, label)
    totals = (f"{row.parameters:,}" if row.parameters else "", _work(row.multiply_accumulates))
    if row.layer is not None:
        return (label, row.layer.op, row.layer.output, *totals, row.layer.placed, row.layer.reason)
    placed = f"{row.integers:,} of {row.layers:,}"
    return (label, "", "", *totals, placed, "")


def _work(count: int | None) -> str:
    if count is None:
        return "unknown"
    return format_count(count) if count else ""


def _print_reasons(layers: Sequence[TreeLayer]) -> None:
    groups: dict[tuple[str, str], list[TreeLayer]] = {}
    for layer in layers:
        if not layer.integer:
            groups.setdefault((layer.op, NAMED.sub("", layer.reason)), []).append(layer)
    rows = [
        (f"{len(group):,}", op, group[0].name if len(group) == 1 else f"{group[0].name}, …", group[0].reason)
        for (op, _), group in groups.items()
    ]
    table = Table(("in float", "op", "layers", "reason"), tuple(rows[:_MOST_REASONS]))
    print_table(table, right=(0,), whole=(0, 1), optional=(2,))
    if len(rows) > _MOST_REASONS:
        say(f"and {len(rows) - _MOST_REASONS:,} more reasons; --all shows the reason of every layer")


def _print_totals(result: Inspection, layers: Sequence[TreeLayer]) -> None:
    verb = "are quantized" if result.quantized else "would be quantized"
    integers = sum(layer.integer for layer in layers)
    say(f"{integers} of {len(layers)} layers {verb}, by the rules of {result.plan.target}")
    work = sum(layer.multiply_accumulates or 0 for layer in layers if layer.integer)
    share = format_share(work, result.work.total)
    say(f"{format_count(result.work.total)} multiply-accumulates per sample, {share} in integers")
    for note in counting_notes(
        result.work.assumed, result.work.once, "pass --set model.input_shape for other sizes"
    ):
        say(note)
    unknown = list(result.work.unknown.items())
    for name, reason in unknown[:_MOST_UNKNOWN]:
        say(f"note: '{name}' is not counted: {reason}")
    if len(unknown) > _MOST_UNKNOWN:
        say(f"note: {len(unknown) - _MOST_UNKNOWN:,} more are not counted")
