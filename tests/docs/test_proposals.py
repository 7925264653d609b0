"""What ptq proposes to run exists: hints, next steps and remedies name commands and options as they are.

The fixtures that call ``ptq`` check what it prints; here the texts of its code are checked, whether or not a
test makes it print them.
"""

from pathlib import Path

import ptq_cli
from tests.each_case import each_case
from tests.proposed_commands import problems_of_printed, problems_of_prose, texts_of

PACKAGE = Path(ptq_cli.__file__).parent
RUNNER = PACKAGE / "devices/run.py"  # It travels without ptq, and has options of its own
SOURCES = sorted({*PACKAGE.rglob("*.py")} - {RUNNER})


def test_every_text_names_commands_and_options_that_exist() -> None:
    texts = {text for path in SOURCES for text in texts_of(path.read_text(encoding="utf-8"))}
    named = sorted(text for text in texts if "--" in text or "ptq " in text)
    assert len(named) > 500
    problems = [problem for text in named for problem in problems_of_prose(text)]
    assert not problems, "\n".join(problems)


@each_case(
    "line",
    [
        "next: ptq evalute",
        "next: ptq evaluate --rum 'my run'",
        "next, with the other shards: ptq merge --rum all",
        "to try: ptq export --amax",
        "to try: ptq export --set amax.percentile=much",
        "hint: run `ptq calibratte` again",
        "hint: ptq recipe int MODEL writes one",
        "warning: ptq export --exclud LAYER keeps a layer in float",
        "hint: leave out --recovr, or pass --samples 100",
        "hint: ptq verify --recover all",
        "hint: pass --set amax.bin=8",
    ],
)
def test_what_is_misspelt_is_found(line: str) -> None:
    assert problems_of_printed(f"wrote a.onnx\n{line}\n")


@each_case(
    "line",
    [
        "next: ptq evaluate 'a model.onnx' --run b",
        "to try: ptq export --run 'my run' --exclude 'a b' --exclude /c",
        "hint: use ptq evaluate and ptq verify, and leave recovery.rungs=ranges and round out",
        "hint: pass --target ort-cpu, or run ptq profile again with --target tensorrt",
        "error PTQ-USAGE-001: no such option '--color'",
        "warning: ptq then evaluates, ptq profiles and ptq quantizes",
    ],
)
def test_what_exists_is_not_called_misspelt(line: str) -> None:
    assert problems_of_printed(line) == []
