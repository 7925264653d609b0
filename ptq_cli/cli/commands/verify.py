"""``ptq verify``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.options import (
    IMAGE,
    INPUT_SHAPE,
    JSON,
    MODEL_ARGUMENT,
    RECIPES,
    RUN,
    THREADS,
    settings_from,
    take,
)


@click.command(
    short_help="Prove what runs as integers.",
    epilog="""\b
Examples:
  ptq verify
  ptq verify model.int8.onnx --target ort-cpu --min-integer-share 0.95
  ptq verify theirs.onnx --target tensorrt --random-inputs --json

Exit status 3 if a rule of the target is broken, or the share is missed.
""",
)
@click.option("--target", metavar="NAME", help="Whose rules.  [default: what the file was made for]")
@click.option(
    "--min-integer-share", type=float, metavar="X", help="Exit 3 if a smaller share is in integers: 0.95."
)
@click.option("--data", metavar="PATH", help="Samples to compare outputs on.  [default: the recipe's]")
@click.option("--random-inputs", is_flag=True, help="Compare on made-up inputs where there are no data.")
@click.option("--all", "show_all", is_flag=True, help="List every operator, not only what stays float.")
@take(MODEL_ARGUMENT, INPUT_SHAPE, IMAGE, THREADS, RUN, RECIPES, JSON)
def command(
    model: Path | None,
    run: Path,
    min_integer_share: float | None,
    random_inputs: bool,
    show_all: bool,
    recipe: Path | None,
    preset: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Verify MODEL, any ONNX file with QuantizeLinear/DequantizeLinear; by default the run's own.

    ONNX Runtime optimizes it, and each operator is found again as an integer kernel or not, with the rule
    of the target that explains it. The multiply-accumulates in integers are counted, the target's rules of
    structure checked, and the outputs of both graphs compared: as it is written, and optimized.
    """
    from ptq_cli.cli.shown.output import print_json
    from ptq_cli.cli.shown.progress_bar import shown_progress
    from ptq_cli.cli.shown.result_lines import GATE_MISSED
    from ptq_cli.cli.shown.verification_tables import print_verification, verification_values
    from ptq_cli.pipeline.inspection.run_verify import VerifyOptions, run_verify
    from ptq_cli.pipeline.run.resolve import Request
    from ptq_cli.pipeline.run.run_directory import RunDirectory

    request = Request(settings=settings_from(options), model=None, recipe_file=recipe, preset=preset)
    asked = VerifyOptions(min_integer_share, made_up=random_inputs)
    with shown_progress() as progress:
        result = run_verify(request, RunDirectory(run), model, asked, progress)
    if as_json:
        print_json(verification_values(result))
    else:
        print_verification(result, show_all=show_all)
    return 0 if result.verdict == "pass" else GATE_MISSED
