"""``ptq repair``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import OWN, SectionCommand, argument, option
from ptq_cli.terminal.options.model_options import data_option
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, RECIPES, request_from, take


@click.command(
    cls=SectionCommand,
    short_help="Make a quantized file exact on every processor.",
    epilog="""\b
Examples:
  ptq repair theirs.onnx
  ptq repair theirs.onnx --float model.onnx -o exact.onnx
  ptq repair theirs.onnx --float model.onnx --data calib.npz
  ptq repair exact.onnx --check
""",
)
@argument("model", type=PATH)
@option(
    OWN,
    "--float",
    "float_model",
    type=PATH,
    metavar="MODEL",
    help="ONNX model that MODEL was quantized from: its weights are rounded once, instead of twice.",
)
@option(
    OWN,
    "--output",
    "-o",
    type=PATH,
    metavar="FILE",
    help="Output file.  [default: MODEL with .repaired.onnx at its end]",
)
@option(OWN, "--check", is_flag=True, help="Write nothing, and exit with status 3 if a repair is needed.")
@data_option("Samples to compare the outputs on, and to correct biases with.")
@take(RECIPES, GLOBALS)
def command(
    model: Path,
    float_model: Path | None,
    output: Path | None,
    check: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Make MODEL, a quantized ONNX file of any tool, compute the same integer sums on every processor.

    x86 processors without VNNI add two products of bytes in 16 bits, which saturate where two neighboring
    weights are large. Weights of layers where that can happen get a scale at which it cannot, and their
    biases the one that belongs to it. Everything else in the file stays byte for byte as it is.

    No data are needed. With --float the new integers are rounded from the float weights.
    """
    from ptq_cli.core.process import DONE
    from ptq_cli.repair.repair_lines import print_repair
    from ptq_cli.repair.run_repair import RepairOptions, run_repair
    from ptq_cli.shown.report_lines import GATE_MISSED
    from ptq_cli.terminal.output import print_json
    from ptq_cli.terminal.progress_bar import shown_progress

    asked = RepairOptions(float_model=float_model, output=output, check=check)
    with shown_progress() as progress:
        result = run_repair(request_from(options), model, asked, progress)
    if as_json:
        print_json(result)
    else:
        print_repair(result)
    return GATE_MISSED if result.verdict == "needs repair" else DONE
