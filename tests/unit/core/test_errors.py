import ast
import inspect
from pathlib import Path

import ptq_cli
from ptq_cli.core import errors
from ptq_cli.core.errors import PtqError, UsageError
from ptq_cli.core.words import did_you_mean
from tests.each_case import each_case

PACKAGE = Path(ptq_cli.__file__).parent
CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, PtqError)]


def test_codes_are_unique():
    codes = [error.code for error in CLASSES]
    assert len(codes) == len(set(codes))


@each_case("error", CLASSES, ids=lambda error: error.__name__)
def test_each_class_has_its_own_code_text_and_exit_status(error):
    assert "code" in vars(error)
    assert error.code.startswith("PTQ-")
    assert inspect.getdoc(error)
    assert error.exit_status == 2


@each_case("error", CLASSES, ids=lambda error: error.__name__)
def test_message_and_hint_are_one_line_each(error):
    raised = error("first\nsecond\t third", hint="do\n  this")
    assert raised.message == "first second third"
    assert str(raised) == f"{error.code}: first second third\nhint: do this"


def test_each_error_of_a_command_has_a_hint():
    names = {error.__name__ for error in CLASSES}
    missing = []
    for path in PACKAGE.rglob("*.py"):
        # Functions that programs call, with arguments of their own, leave the hint out now and then.
        if path.relative_to(PACKAGE).parts[0] in ("quantizers", "core"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_error = (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
            )
            if is_error and all(keyword.arg not in ("hint", None) for keyword in node.keywords):
                missing.append(f"{path.name}:{node.lineno}")
    assert missing == []


def test_a_very_long_message_or_hint_is_cut_in_the_middle():
    error = UsageError(f"model '{'n' * 200_000}' is damaged", hint=f"copy {'m' * 200_000} again")
    assert error.message.startswith("model 'nnn") and error.message.endswith("nnn' is damaged")
    assert error.hint.startswith("copy mmm") and error.hint.endswith("mmm again")
    assert len(str(error)) < 10_000
    assert UsageError("w" * 4000).message == "w" * 4000


def test_did_you_mean_names_only_near_names():
    assert did_you_mean("percentle", ["percentile", "entropy"]) == " (did you mean 'percentile'?)"
    assert did_you_mean("zzz", ["percentile"]) == ""
