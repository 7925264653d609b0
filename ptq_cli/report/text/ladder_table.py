"""The ladder of a tuning as text: a row for each candidate."""

from ptq_cli.report.document.ladder import BudgetCheck, Ladder, LadderStep
from ptq_cli.report.text.numbers import format_decibels
from ptq_cli.report.text.summary import Row, Table, format_drop, format_value


def ladder_table(ladder: Ladder) -> Table:
    """Return each candidate: its SQNR, each budget's metric, and what the samples set aside have shown."""
    names = [check.metric for check in ladder.best.checks]
    header = ["rung", "SQNR"]
    for check in ladder.best.checks:
        header += [budgeted(check)]
        header += ["at most" if check.kind == "max_drop" else "at least"]
    rows = [_row(step, names, chosen=index == ladder.chosen) for index, step in enumerate(ladder.steps)]
    return Table((*header, "result"), tuple(rows))


def _row(step: LadderStep, names: list[str], *, chosen: bool) -> Row:
    cells = [step.name, format_decibels(step.sqnr_db)]
    checks, proof = ({check.metric: check for check in found} for found in (step.checks, step.proof))
    for name in names:
        check = proof.get(name, checks[name])
        cells += [written(check, check.value), written(check, check.bound) if name in proof else ""]
    return (*cells, result_of(step, chosen=chosen))


def budgeted(check: BudgetCheck) -> str:
    """Return what a budget limits, in words: a drop, or a value."""
    return f"drop of {check.metric}" if check.kind == "max_drop" else check.metric


def written(check: BudgetCheck, value: float) -> str:
    """Write a value of a budget's metric.

    Example:
        >>> check = BudgetCheck(
        ...     metric="top1", unit="share", kind="max_drop", limit=0.01, value=0.0, bound=0.0
        ... )
        >>> written(check, 0.004)
        '0.40 points'
    """
    return format_drop(value, check.unit) if check.kind == "max_drop" else format_value(value, check.unit)


def result_of(step: LadderStep, *, chosen: bool) -> str:
    """Say what became of a candidate."""
    if step.met:
        return "budget kept"
    if not step.kept:
        return "no better"
    proven = "not proven" if step.proof else "better"
    return f"{proven}, chosen" if chosen else proven


def verdict_of(ladder: Ladder) -> str:
    """Say whether the budget is kept, and how sure that is.

    Example:
        >>> step = LadderStep(name="default", rungs=(), in_float=(), sqnr_db=30.0, kept=True, checks=())
        >>> ladder = Ladder(
        ...     model_sha256="0" * 64, samples=256, set_aside=256, steps=(step,), chosen=0, met=True
        ... )
        >>> verdict_of(ladder)
        'budget kept by default: shown with 95 % confidence on 256 samples set aside'
    """
    if ladder.met:
        return (
            f"budget kept by {ladder.best.name}: shown with 95 % confidence on {ladder.set_aside:,} samples "
            "set aside"
        )
    return (
        f"BUDGET MISSED: {ladder.best.name} is the best of {len(ladder.steps)} candidates; {ladder.stopped}"
    )
