"""How a repair is shown."""

import shlex
from pathlib import Path

from ptq_cli.repair.repair_document import ChangedWeight, Repair, RepairComparison
from ptq_cli.report.text.numbers import Table, format_decibels
from ptq_cli.terminal.output import detail, is_quiet, print_table, say, tell
from ptq_cli.terminal.phrases import as_typed, counted

_MOST_ROWS = 8
FROM_FLOAT = "float model"


def print_repair(result: Repair) -> None:
    """Print what a file needed, what was changed, what that did, and where the result is."""
    say(f"before: {result.before.text}")
    if result.output is None:
        if result.before.saturating:
            file = shlex.quote(as_typed(result.model, Path.cwd()))
            tell(f"hint: ptq repair {file} writes a file that is exact")
        say(result.verdict)
        return
    if result.after is not None and result.changed:
        say(f"after:  {result.after.text}")
        if not is_quiet():
            _print_changes(result)
    if result.comparison is not None:
        _print_comparison(result.comparison)
    what = "" if result.changed else ", a copy: no layer can saturate"
    say(f"wrote {as_typed(result.output, Path.cwd())}{what}")


def _print_changes(result: Repair) -> None:
    worst = sorted(result.changed, key=lambda item: -item.largest_change)
    rows = [
        (
            ", ".join(item.layers),
            f"{item.largest_change:.2f}",
            f"{item.largest_factor:.2f}",
            item.rounded_from,
        )
        for item in worst[:_MOST_ROWS]
    ]
    header = ("layer", "largest change in steps", "scale grew by", "rounded from")
    print_table(Table(header, tuple(rows)), right=(1, 2), whole=(1, 2, 3))
    if len(worst) > len(rows):
        detail(f"{len(rows)} of {counted(len(worst), 'changed weight')}; --json lists all")
    own = [item for item in worst if item.rounded_from != FROM_FLOAT]
    if own and len(own) < len(worst):
        detail(f"not in the float model, so rounded from the file: {_names(own)}")
    if result.copied:
        detail(f"kept for other readers, with new constants beside them: {', '.join(result.copied)}")


def _names(items: list[ChangedWeight]) -> str:
    shown = ", ".join(item.name for item in items[:_MOST_ROWS])
    return shown if len(items) <= _MOST_ROWS else f"{shown} and {len(items) - _MOST_ROWS:,} more"


def _print_comparison(found: RepairComparison) -> None:
    data = as_typed(found.data, Path.cwd())
    samples = f"{counted(found.samples, 'sample')} of {data}"
    say(f"SQNR of the worst output against the {found.reference}, {samples}:")
    if found.saturates_here:
        say(f"  the file, on this processor: {format_decibels(found.before_db)}")
        if found.exact_db is not None:
            say(f"  the file with exact sums: {format_decibels(found.exact_db)}")
    elif found.exact_db is not None:
        say(f"  the file with exact sums: {format_decibels(found.exact_db)} (this processor has them)")
    say(f"  repaired, on any processor: {format_decibels(found.after_db)}")
    if found.biases:
        detail(f"corrected the biases of {counted(found.biases, 'layer')} on half of the samples")
