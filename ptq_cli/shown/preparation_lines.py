"""What ``ptq export --float`` shows: the passes, the comparison with the model, the file."""

from pathlib import Path
from typing import TYPE_CHECKING

from ptq_cli.models.preparing.passes.registry import PASSES
from ptq_cli.report.text.numbers import Table
from ptq_cli.terminal.output import print_table, say
from ptq_cli.terminal.phrases import as_typed, closeness, shown_path

if TYPE_CHECKING:
    from ptq_cli.pipeline.run_prepare import PrepareResult


def print_prepared(result: "PrepareResult") -> None:
    """Print what the passes did to a model, and how the result compares with it."""
    effects = {item.name: item.effect for item in PASSES}
    rows = [(name, f"{times:,}", effects[name]) for name, times in result.applied.items() if times]
    if result.simplified:
        rows.insert(
            0,
            ("simplify", f"{result.simplified:,}", "folded constants and removed nodes that compute nothing"),
        )
    say(f"{result.file.path.name}: {result.file.kind.value}")
    print_table(Table(("pass", "times", "what it did"), tuple(rows)), right=(1,), whole=(0, 1))
    say(f"nodes: {result.nodes_before:,} before, {result.nodes:,} after; opset {result.opset}")
    for note in result.notes:
        say(f"note: {note}")
    inputs = as_typed(result.compared_on, Path.cwd())
    if result.difference is None:
        say(f"not compared: {result.file.path.name} does not run on {inputs}; pass data with --data")
    else:
        say(f"the ONNX model equals {result.compared_with} {closeness(result.difference)}, on {inputs}")
    say(f"wrote {shown_path(result.output)}")
