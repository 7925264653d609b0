"""How a drift is shown on the terminal: the tensors that moved most, and what to do."""

import shlex

from ptq_cli.monitoring.drift import Drift
from ptq_cli.monitoring.drift_page import drift_table, expected_line, verdict_line
from ptq_cli.monitoring.run_drift import DriftResult
from ptq_cli.setup.run_directory import RunDirectory
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
