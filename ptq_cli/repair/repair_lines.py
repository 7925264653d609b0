"""How a repair is shown."""

from pathlib import Path

from ptq_cli.repair.repair_document import Repair
from ptq_cli.report.text.numbers import Table
from ptq_cli.terminal.output import print_table, say, tell
from ptq_cli.terminal.phrases import as_typed, counted


def print_repair(result: Repair) -> None:
    """Print what a file needed, what was changed, and where the result is."""
    say(f"before: {result.before.text}")
    if result.output is None:
        if result.before.saturating:
            tell(f"hint: ptq repair {result.model}")
        say(result.verdict)
        return
    say(f"wrote {result.output}")
