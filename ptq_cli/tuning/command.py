"""``ptq tune``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import OWN, SectionCommand, option
from ptq_cli.terminal.options.model_options import (
    ARCH,
    CALIBRATION,
    EVALUATION_DATA,
    MODEL_ARGUMENT,
    QUANTIZATION,
    TARGET,
    setting,
)
from ptq_cli.terminal.options.shared_options import (
    GLOBALS,
    OUTPUT,
    RECIPES,
    RUN,
    once_from,
    request_from,
    take,
)


@click.command(
    cls=SectionCommand,
    once=("restart", "evaluate"),
    short_help="Quantize so that accuracy provably stays within a budget.",
    epilog="""\b
Examples:
  ptq tune model.pt --budget top1=1%
  ptq tune model.onnx --budget sqnr_db=30 --time-budget 10m
  ptq tune model.onnx --budget top1=0.01 --budget top1_agreement=0.97 --prefer latency
  torchrun --nproc-per-node=4 -m ptq_cli -- tune model.onnx --budget sqnr_db=30

Exits with status 3 if the budget is not kept; the best candidate is written all the same.
""",
)
@option(
    OWN,
    "--budget",
    multiple=True,
    metavar="METRIC=X",
    help="Largest drop of a metric: top1=0.5%, top1=0.01; or the smallest value of one that compares the "
    "models: sqnr_db=30. Can be repeated.",
)
@setting(OWN, "tune.time_budget", metavar="TIME")
@take(OUTPUT, MODEL_ARGUMENT, CALIBRATION, ARCH, TARGET)
@take(QUANTIZATION, EVALUATION_DATA)
@take(RUN, RECIPES, GLOBALS)
def command(
    model: Path | None,
    output: Path | None,
    run: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Quantize MODEL so that accuracy provably stays within a budget, at the least cost.

    Half of the calibration data is held out. Candidates are made from the other half: the default, then
    each rung of --recover, then fewer and fewer integer layers, the cheapest first. The command stops when
    the held-out samples show with 95 % confidence that the budget is kept.

    The best candidate so far is always in the run directory, with a recipe from which ptq quantize makes the
    same file: Ctrl-C keeps it, and the same command continues.

    Under torchrun several processes share the samples of each measurement; the result is the same, byte for
    byte. Runs under torchrun cannot be resumed.
    """
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.terminal.progress_bar import shown_progress
    from ptq_cli.tuning.run_tune import run_tune
    from ptq_cli.tuning.tuning_lines import show_tuning

    once = once_from(options)
    request = request_from(options, model)
    with shown_progress() as progress:
        result = run_tune(request, RunDirectory(run), output, once, progress)
    return show_tuning(result, as_json=as_json)
