"""How a file that was made again is shown."""

from pathlib import Path

from ptq_cli.receipts.run_rederive import Rederivation, StatedFact
from ptq_cli.terminal.output import say
from ptq_cli.terminal.phrases import as_typed, counted

_HASH = 16  # digits of a hash that are shown


def print_rederivation(result: Rederivation) -> None:
    """Print whether a file is what its statement says, and the first parts that differ."""
    name = as_typed(str(result.model), Path.cwd())
    if result.verdict == "pass":
        say(f"{name}: the same {result.bytes:,} bytes, made again from what {result.statement.name} names")
    elif result.differences:
        count = counted(len(result.differences) + result.more, "part")
        say(f"{name}: {count} not as made again from what {result.statement.name} names")
    for item in result.differences:
        what = f"{item.kind} '{item.name}'" if item.name else f"{item.kind}:"
        say(f"  {what} {item.text}")
    if result.more:
        say(f"  and {result.more:,} more")
    for fact in result.facts:
        if not fact.holds:
            say(f"  {_fact(fact)}")
        elif not fact.found:
            say(f"{fact.what}: not compared, it is not in the run directory")
    if not result.derived:
        say("not made again: these are not the files that the statement names")
    if result.verdict == "fail" and result.other_versions:
        others = "; ".join(f"{name} was {text}" for name, text in result.other_versions.items())
        say(f"hint: other versions may give other bytes: {others}")
    if result.by_runs and result.differences:
        say(
            f"hint: running models decided {', '.join(result.by_runs)}, which another processor may decide "
            "otherwise"
        )
    say("pass" if result.verdict == "pass" else "FAIL")


def _fact(fact: StatedFact) -> str:
    stated, found = (" ".join(word[:_HASH] for word in text.split()) for text in (fact.stated, fact.found))
    return f"{fact.what}: {found}, and the statement says {stated}"
