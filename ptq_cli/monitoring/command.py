"""``ptq drift``, and what it prints: the tensors that moved most, and what to do."""

import shlex
from pathlib import Path
from typing import Any

import click

from ptq_cli.monitoring.drift import Drift
from ptq_cli.monitoring.drift_page import drift_table, expected_line, verdict_line
from ptq_cli.monitoring.run_drift import DriftResult
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.terminal.options.help_sections import DATA, EVALUATION, OWN, SectionCommand, argument, option
from ptq_cli.terminal.options.shared_options import GLOBALS, RECIPES, RUN, request_from, take
from ptq_cli.terminal.output import detail, is_quiet, print_table, say, tell, warn
from ptq_cli.terminal.phrases import counted, shown_path

_NUMBERS = tuple(range(1, 9))


def print_drift(result: DriftResult, top: int) -> None:
    """Print the worst tensors, what the quantized model is expected to lose, and the verdict."""
    drift = result.drift
    if not is_quiet():
        _print_tensors(drift, top)
        if line := expected_line(drift):
            say(line)
        if not drift.exported:
            say("ranges: decided from the calibration, because the run has no quantized model")
    say(verdict_line(drift))
    for fault in drift.faults[1:]:
        say(f"      {fault}")
    say(f"wrote {shown_path(result.run.drift)} and {result.run.drift_page.name}")
    if drift.verdict == "undecided":
        warn("drift was not decided; --max-clipped and --min-expected-sqnr set limits")
    if drift.faults and not any(item.nonfinite.total for item in drift.tensors):
        for line in remedy(drift, result.run):
            tell(line)


def _print_tensors(drift: Drift, top: int) -> None:
    new, tensors = counted(drift.samples, "sample"), counted(len(drift.tensors), "tensor")
    say(f"compared {new} with {drift.calibration_samples:,} of the calibration: {tensors}")
    # The range and what it was are the first to go, then the interval.
    hidden = print_table(
        drift_table(drift.tensors[:top]), right=_NUMBERS, whole=_NUMBERS, optional=(4, 5, 6, 7, 8)
    )
    left_out = len(drift.tensors) - top
    if left_out > 0:
        say(f"{top} of {len(drift.tensors):,} tensors; --top {len(drift.tensors)} or --json shows all")
    say("moved by: average distance of the values, in steps of 8 bits; * is more than chance explains")
    if "SQNR" not in hidden:
        say("SQNR: in dB, by rounding and clipping of this tensor alone; before: of the calibration")
    if hidden:
        detail(f"the terminal is too narrow for: {', '.join(hidden)}; --json has them")


def remedy(drift: Drift, run: RunDirectory) -> list[str]:
    """Return the commands that add the new data to the calibration.

    Example:
        >>> from pathlib import Path
        >>> from types import SimpleNamespace
        >>> remedy(SimpleNamespace(source="day.npz"), RunDirectory(Path("ptq-run")))[1]
        'hint: ptq calibrate --recipe ptq-run/recipe.toml --data day.npz --run ptq-run-new'
    """
    own, new, both = (shlex.quote(f"{run.path}{end}") for end in ("", "-new", "-merged"))
    recipe, data = shlex.quote(str(run.recipe)), shlex.quote(drift.source)
    return [
        "hint: if such data are to be expected, add them to the calibration, and export again:",
        f"hint: ptq calibrate --recipe {recipe} --data {data} --run {new}",
        f"hint: ptq merge {own} {new} --run {both}",
        f"hint: ptq export --run {both}",
    ]


@click.command(
    cls=SectionCommand,
    short_help="Compare new data with those of the calibration.",
    epilog="""\b
Examples:
  ptq drift today.npz
  ptq drift today.npz --inputs-only
  ptq drift today.npz --max-clipped 0.1% --min-expected-sqnr 25
""",
)
@argument("data")
@option(OWN, "--inputs-only", is_flag=True, help="Look at the model's inputs only, and run no model.")
@option(
    OWN,
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of rows to show.",
)
@option(DATA, "--samples", type=int, metavar="N", help="Number of samples.  [default: all]")
@option(
    EVALUATION,
    "--max-clipped",
    metavar="X",
    help="Exit with status 3 if more than this share of a tensor's values is clipped: 0.001, 0.1%.",
)
@option(
    EVALUATION,
    "--min-expected-sqnr",
    type=float,
    metavar="DB",
    help="Exit with status 3 if the SQNR expected from rounding and clipping is lower.",
)
@take(RUN, RECIPES, GLOBALS)
def command(
    data: str,
    inputs_only: bool,
    top: int,
    samples: int | None,
    max_clipped: str | None,
    min_expected_sqnr: float | None,
    run: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare DATA, such as the inputs of a day, with those of a calibration, and write drift.json and .html.

    The float model runs on DATA. For each quantized tensor, the command shows how far its histogram has moved
    since the calibration, how far chance alone would move it, and the share of values that is clipped. The
    expected SQNR follows from the rounding and clipping of all tensors.

    Exits with status 3 if a tensor has moved by at least one step of 8 bits and further than chance explains,
    or, if there are limits, if one of them is exceeded; also if new values are NaN or infinite.
    """
    from ptq_cli.core.process import DONE
    from ptq_cli.monitoring.compared_drift import Limits
    from ptq_cli.monitoring.run_drift import DriftOptions, parse_share, run_drift
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.report_lines import GATE_MISSED
    from ptq_cli.terminal.output import print_json
    from ptq_cli.terminal.progress_bar import shown_progress

    limits = Limits(
        max_clipped=parse_share(max_clipped) if max_clipped is not None else None,
        min_expected_sqnr=min_expected_sqnr,
    )
    asked = DriftOptions(samples=samples, inputs_only=inputs_only, limits=limits)
    with shown_progress() as progress:
        result = run_drift(request_from(options), RunDirectory(run), data, asked, progress)
    if as_json:
        print_json(result.drift)
    else:
        print_drift(result, top)
    return GATE_MISSED if result.drift.verdict == "fail" else DONE
