"""What a tuning tried and chose, in lines for a person and values for ``--json``."""

import json
from typing import TYPE_CHECKING, Any

from ptq_cli.cli.shown.report_lines import (
    GATE_MISSED,
    add_report_to_step_summary,
    exit_status,
    print_evaluation,
    report_values,
)
from ptq_cli.cli.shown.terminal.output import detail, print_json, print_table, say
from ptq_cli.cli.shown.terminal.phrases import shown_path
from ptq_cli.cli.shown.terminal.quiet_flag import is_quiet
from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.core.work.own_process import interrupt_status
from ptq_cli.report.document.ladder import ladder_to_json
from ptq_cli.report.text.ladder_table import ladder_table, verdict_of
from ptq_cli.report.text.summary import share_of_float

if TYPE_CHECKING:
    from ptq_cli.pipeline.tuning.finished_tuning import TuneResult

MOST_NAMES = 8


def show_tuning(result: "TuneResult", *, as_json: bool) -> int:
    """Print what was tried and chosen, and return the status to exit with."""
    add_report_to_step_summary(result.evaluation)
    if as_json:
        print_json({**tuning_values(result), "report": report_values(result.evaluation)})
    else:
        print_tuning(result)
        if result.evaluation is not None:
            print_evaluation(result.evaluation)
    return tuning_status(result)


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
        ("dynamic", best.dynamic),
        ("weight-only", best.weights_alone),
        ("in float", best.in_float),
    ):
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            detail(f"{what}: {', '.join(names[:MOST_NAMES])}{more}")
    if ladder.untried:
        detail(ladder.untried)
    if result.interrupted:
        say("interrupted: the best so far was written, and the same command continues")
    share = share_of_float(result.bytes, result.float_bytes)
    say(f"wrote {shown_path(result.output)} ({format_bytes(result.bytes)}, {share})")
    detail(f"the same file again: ptq quantize --recipe {shown_path(result.run.recipe)}")


def tuning_values(result: "TuneResult") -> dict[str, Any]:
    """Return what was tried and chosen, for JSON."""
    return {
        "run": str(result.run.path),
        "output": str(result.output),
        "bytes": result.bytes,
        "float_bytes": result.float_bytes,
        "interrupted": result.interrupted,
        "ladder": json.loads(ladder_to_json(result.ladder)),
    }


def tuning_status(result: "TuneResult") -> int:
    """Return 130 or 143 if it was interrupted, 3 if the budget or a gate was missed, otherwise 0."""
    if result.interrupted:
        return interrupt_status()
    return exit_status(result.evaluation) if result.ladder.met else GATE_MISSED
