"""``ptq tune``, and its lines: the ladder of candidates, the verdict, and what was written."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.core.process import interrupt_status
from ptq_cli.core.words import few, format_bytes
from ptq_cli.report.text.numbers import share_of_float
from ptq_cli.report.text.summary import ladder_table, verdict_of
from ptq_cli.shown.report_lines import GATE_MISSED, add_report_to_step_summary, exit_status, print_evaluation
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
from ptq_cli.terminal.output import detail, is_quiet, print_json, print_table, say
from ptq_cli.terminal.phrases import shown_path

if TYPE_CHECKING:
    from ptq_cli.tuning.run_tune import TuneResult


def show_tuning(result: "TuneResult", *, as_json: bool) -> int:
    """Print what was tried and chosen, and return the status to exit with."""
    add_report_to_step_summary(result.evaluation)
    if as_json:
        print_json(result)
    else:
        print_tuning(result)
        if result.evaluation is not None:
            print_evaluation(result.evaluation)
    if result.interrupted:
        return interrupt_status()
    return exit_status(result.evaluation) if result.ladder.met else GATE_MISSED


def print_tuning(result: "TuneResult") -> None:
    """Print the ladder, the verdict, and what was written."""
    ladder = result.ladder
    table = ladder_table(ladder)
    if not is_quiet():
        print_table(table, right=tuple(range(1, len(table.header) - 1)))
    say(verdict_of(ladder))
    for line in ladder.advice:
        detail(f"what it would take: {line}")
    best = ladder.best
    for what, names in (
        ("in 16 bits", best.in_16_bits),
        ("weights in 8 bits", best.in_8_bits),
        ("dynamic", best.dynamic),
        ("in float", best.in_float),
    ):
        if names:
            detail(f"{what}: {few(names, _MOST_NAMES)}")
    if ladder.untried:
        detail(ladder.untried)
    if result.interrupted:
        say("interrupted: the best so far was written, and the same command continues")
    share = share_of_float(result.bytes, result.float_bytes)
    say(f"wrote {shown_path(result.output)} ({format_bytes(result.bytes)}, {share})")
    detail(f"the same file again: ptq quantize --recipe {shown_path(result.run.recipe)}")


_MOST_NAMES = 8


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
def command(model: Path | None, output: Path | None, run: Path, as_json: bool, **options: Any) -> int:
    """Quantize MODEL so that accuracy provably stays within a budget, at the least cost.

    Half of the calibration data is held out. Candidates are made from the other half: the default, then
    each rung of --recover, then higher and higher goals for the worst output, each with as few layers in
    float as it takes. The command stops when the held-out samples show with 95 % confidence that the budget
    is kept.

    The best candidate so far is always in the run directory, with a recipe from which ptq quantize makes the
    same file: Ctrl-C keeps it, and the same command continues.

    Under torchrun several processes share the samples of each measurement; the result is the same, byte for
    byte. Runs under torchrun cannot be resumed.
    """
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.terminal.progress_bar import shown_progress
    from ptq_cli.tuning.run_tune import run_tune

    once = once_from(options)
    request = request_from(options, model)
    with shown_progress() as progress:
        result = run_tune(request, RunDirectory(run), output, once, progress)
    return show_tuning(result, as_json=as_json)
