"""Candidates of a tuning as a table, and the verdict in words."""

from ptq_cli.evaluation.document.ladder import INTERRUPTED, BudgetCheck, Ladder, LadderStep
from ptq_cli.report.text.numbers import Row, Table, format_decibels, format_drop, format_value


def ladder_table(ladder: Ladder) -> Table:
    """Each candidate: its SQNR, each budget's metric, and what the held-out samples have shown."""
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
    """Quantity that a budget limits, in words: a drop, or a value."""
    return f"drop of {check.metric}" if check.kind == "max_drop" else check.metric


def written(check: BudgetCheck, value: float) -> str:
    """Write a value of a budget's metric."""
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
    """Say whether the budget is kept, and how sure that is."""
    if ladder.met:
        return (
            f"budget kept by {ladder.best.name}: shown with 95 % confidence on {ladder.set_aside:,} held-out "
            "samples"
        )
    count = len(ladder.steps)
    best = f"{ladder.best.name} is the best of {count} candidate{'' if count == 1 else 's'}"
    if ladder.stopped == INTERRUPTED:
        return f"the budget is not kept yet: {best} so far"
    return f"BUDGET MISSED: {best}; {ladder.stopped}"
