"""Lines of ``ptq tune``: the ladder of candidates, the verdict, and what was written."""

from typing import TYPE_CHECKING

from ptq_cli.core.process import interrupt_status
from ptq_cli.core.words import few, format_bytes
from ptq_cli.report.text.summary import share_of_float
from ptq_cli.report.text.tables import ladder_table, verdict_of
from ptq_cli.shown.report_lines import (
    GATE_MISSED,
    add_report_to_step_summary,
    exit_status,
    print_evaluation,
)
from ptq_cli.terminal.output import detail, is_quiet, print_json, print_table, say
from ptq_cli.terminal.phrases import shown_path

if TYPE_CHECKING:
    from ptq_cli.tuning.run_tune import TuneResult
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


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
        ("dynamic", best.dynamic),
        ("weight-only", best.weights_alone),
        ("in float", best.in_float),
    ):
        if names:
            detail(f"{what}: {few(names, MOST_NAMES)}")
    if ladder.untried:
        detail(ladder.untried)
    if result.interrupted:
        say("interrupted: the best so far was written, and the same command continues")
    share = share_of_float(result.bytes, result.float_bytes)
    say(f"wrote {shown_path(result.output)} ({format_bytes(result.bytes)}, {share})")
    detail(f"the same file again: ptq quantize --recipe {shown_path(result.run.recipe)}")


MOST_NAMES = 8
