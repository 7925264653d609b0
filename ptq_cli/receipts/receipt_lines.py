"""How a file that was made again is shown."""

from pathlib import Path

from ptq_cli.receipts.run_rederive import Rederivation
from ptq_cli.terminal.output import say
from ptq_cli.terminal.phrases import as_typed, counted

_SHA256, _HASH = 64, 16  # digits of a hash, and those that are shown


def print_rederivation(result: Rederivation) -> None:
    """Print whether a file is what its statement says, and the first parts that differ."""
    name, statement = as_typed(str(result.model), Path.cwd()), result.statement.name
    if result.verdict == "pass":
        say(f"{name}: the same {result.bytes:,} bytes, made again from what {statement} names")
    else:
        say(f"{name}: not what {statement} says")
    for item in result.differences:
        what = f"{item.kind} '{item.name}'" if item.name else item.kind
        say(f"  {what}: {item.text}")
    if result.more:
        say(f"  and {counted(result.more, 'more part')}")
    for fact in result.facts:
        if not fact.holds:
            say(f"  {fact.what}: stated {_short(fact.stated)}, found {_short(fact.found)}")
    if not result.derived:
        say("not made again: these are not the files that the statement names")
    for fact in result.facts:
        if not fact.found:
            say(f"note: the {fact.what} that the statement names is not here, and was not compared")
    if result.verdict == "fail" and result.other_versions:
        others = "; ".join(f"{name} was {text}" for name, text in result.other_versions.items())
        say(f"hint: other versions may give other bytes: {others}")
    if result.differences and result.by_runs:
        decided = ", ".join(result.by_runs)
        say(f"hint: running models decided {decided}, and another processor may decide otherwise")
    say("pass" if result.verdict == "pass" else "FAIL")


def _short(text: str) -> str:
    """Hashes, and words beside them, as a reader compares them."""
    return " ".join(f"{word[:_HASH]}…" if len(word) == _SHA256 else word for word in text.split())
