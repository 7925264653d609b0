"""``ptq prepare``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.cli.help_sections import OWN, SectionCommand, option
from ptq_cli.cli.options.model_options import MODEL_ARGUMENT, MODEL_SOURCE, READING, THREADS, data_option
from ptq_cli.cli.options.shared_options import GLOBALS, PATH, RECIPES, request_from, take

if TYPE_CHECKING:
    from ptq_cli.pipeline.run_prepare import PrepareResult


@click.command(
    cls=SectionCommand,
    short_help="Write the float ONNX model that is measured.",
    epilog="""\b
Examples:
  ptq prepare model.pt -o float.onnx
  ptq prepare old.onnx --data calib.npz -o float.onnx
  ptq prepare model.pt --arch model.py:build --data calib.npz -o float.onnx
""",
)
@option(OWN, "--output", "-o", type=PATH, required=True, metavar="PATH", help="Output file, or folder.")
@data_option("Data to compare the models on.  [default: random inputs]")
@take(MODEL_ARGUMENT, MODEL_SOURCE, READING, THREADS, RECIPES, GLOBALS)
def command(output: Path, model: Path | None, as_json: bool, **options: Any) -> None:
    """Write MODEL as the float ONNX model that ptq calibrate measures, and show what was changed.

    Constants and BatchNormalization are folded, patterns of several operators are replaced by one operator,
    and an old opset is converted. The result is compared with MODEL; if they differ, nothing is written.

    If MODEL is a folder, each float ONNX file in it is prepared, and written to another folder by its name.
    """
    from ptq_cli.cli.terminal.output import print_json
    from ptq_cli.pipeline.folders.model_folder import names_folder
    from ptq_cli.pipeline.run_prepare import run_prepare
    from ptq_cli.pipeline.run_verify_folder import PreparedFolder, run_prepare_folder

    request = request_from(options, model)
    if names_folder(request):
        results = run_prepare_folder(request, output)
        if as_json:
            print_json(PreparedFolder(tuple(results)))
        else:
            for item in results:
                _print(item)
        return
    result = run_prepare(request, output)
    if as_json:
        print_json(result)
    else:
        _print(result)


def _print(result: "PrepareResult") -> None:
    from ptq_cli.cli.terminal.output import print_table, say
    from ptq_cli.cli.terminal.phrases import as_typed, closeness, shown_path
    from ptq_cli.models.preparing.passes.registry import PASSES
    from ptq_cli.report.text.numbers import Table

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
