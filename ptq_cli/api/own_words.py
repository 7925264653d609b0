"""Errors of a call in the words of Python: its arguments, and not the options of the command line."""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, get_origin, get_type_hints

from ptq_cli.core.errors import PtqError
from ptq_cli.recipe.assignments import (
    FLAG_KEYS,
    ONCE,
    ONCE_KEYS,
    OVERRIDE,
    parse_override,
    parse_value,
    setting_types,
)
from ptq_cli.recipe.keyword_settings import Settings
from ptq_cli.setup.resolve import COMMAND_LINE

P = ParamSpec("P")
R = TypeVar("R")

# Argument of each key of a recipe.
_KEYS = {**{key: name for name, key in FLAG_KEYS.items()}, **{f"{ONCE}.{name}": name for name in ONCE_KEYS}}
# Names of commands in Python, where they are others.
_CALLS = {
    "evaluate --shard": "evaluate_shard",
    r"inspect --run (?:'[^']*'|\S+)": "show_calibration",
    "inspect --tensor": "explain",
    "export --float": "prepare",
    "report [A-Z]+ [A-Z]+": "compare",
    "report --card": "model_card",
    "report": "report_page",
}
_SAME = "calibrate export evaluate analyze drift quantize tune verify bench inspect merge"
_COMMAND = re.compile(rf"\bptq ({_SAME.replace(' ', '|')})\b((?: [a-z_]+=\S*[^\s,.;:])*)")
_OPTION = re.compile(
    r"--(?P<no>no-)?(?P<name>[a-z][a-z-]*[a-z])\b"
    r"(?: (?P<value>(?:[\w.]+=)?'[^']*'|[^\s'-]\S*?(?=[.,;:)]*(?:\s|$))))?"
)
_SET = re.compile(
    r"--set (?:'(?P<quoted>[^']+)'|(?P<plain>(?:[a-z]+\.[a-z_]+|override)(?:[.=]\S*?)?(?=[.,;:)]*(?:\s|$))))"
)
# What two keys of the recipe, one for each stage, are called in Python.
_TWICE = re.compile(r"\b(\w+=\w+) or \1\b")
_PASSED = re.compile(r"ptq_cli\.api\.(?:passed_objects|requests):([0-9A-Za-z]*)_[0-9a-f]{16}(_[0-9]+)?")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_BLANK = re.compile(r"[A-Z]+(\.[a-z]+)?|…")  # Placeholder for the reader, such as FILE.


def in_own_words(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of the API name its arguments in the errors that it raises."""

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*arguments, **keywords)
        except PtqError as error:
            kinds = {**get_type_hints(Settings), **get_type_hints(function)}
            error.message = in_python(error.message, kinds, keywords)
            error.hint = in_python(error.hint, kinds, keywords)
            error.args = (error.message,)
            raise

    return call


def in_python(text: str, kinds: dict[str, Any], given: Iterable[str] = ()) -> str:
    """A message with arguments where it has options, and calls where it has commands.

    Example:
        >>> kinds = get_type_hints(Settings)
        >>> in_python("pass --samples 1, or run ptq evaluate --metric top1_loss again", kinds)
        "pass samples=1, or run ptq_cli.evaluate(metric=['top1_loss']) again"
        >>> in_python("--set text.window=8, or --set evaluation.latency=false", kinds)
        'window=8, or latency=False'
        >>> in_python("leave --set data.rename out, or pass --set 'data.rename.a b=x'", kinds)
        "leave rename out, or pass rename={'a b': 'x'}"
        >>> in_python("--set 'override=head*:quantize=true' asks for that", kinds)
        "override=[{'match': 'head*', 'quantize': True}] asks for that"
        >>> in_python("the command line: 'evaluation.metrics' is 'top1'", kinds, ["metric"])
        "'metric' is 'top1'"
    """
    if COMMAND_LINE in text:
        text = text.replace(f"{COMMAND_LINE}: ", "").replace("expected a table", "expected a dict")
    for name in given:
        for key in (key for key, meant in _KEYS.items() if meant == name):
            text = text.replace(f"'{key}'", f"'{name}'")
    for words, name in _CALLS.items():
        text = re.sub(rf"\bptq {words}(?!\w)", f"ptq_cli.{name}()", text)
    text = _SET.sub(_option, text.replace("add --trust-code", "call it in a block of ptq_cli.trust_code()"))
    text = _OPTION.sub(lambda match: _argument(match, kinds), _PASSED.sub(r"\1", text))
    text = _TWICE.sub(r"\1", text)
    return _COMMAND.sub(lambda match: f"ptq_cli.{match[1]}({', '.join(match[2].split())})", text)


def _option(match: re.Match[str]) -> str:
    """Return ``--set KEY=VALUE`` as an option of its own, with the name of the argument."""
    section, _, rest = (match["quoted"] or match["plain"]).partition(".")
    if section.startswith(OVERRIDE):
        pattern, equals, said = match["quoted"].partition("=") if match["quoted"] else (section, "", "")
        return f"override={[parse_override(said)]}" if equals else pattern
    field, mark, value = re.split("([.=]|$)", rest, maxsplit=1)
    key = f"{section}.{field}"
    flag = _KEYS[key].replace("_", "-")
    if not mark:
        return f"--{flag}"
    if setting_types()[key] in (bool, bool | None):
        return f"--{'no-' if value == 'false' else ''}{flag}"
    quote = "'" if match["quoted"] else ""
    return f"--{flag} {quote}{value}{quote}"


def _argument(match: re.Match[str], kinds: dict[str, Any]) -> str:
    name, text = match["name"].replace("-", "_"), match["value"]
    rest = f" {text}" if text else ""
    if name not in kinds:
        return match[0]
    if kinds[name] is bool:
        return f"{name}={not match['no']}{rest}"
    value = _written(name, text, kinds[name]) if text else None
    return f"{name}={value}" if value is not None else f"{name}{rest}"


def _written(name: str, text: str, kind: Any) -> str | None:
    """The word after an option as a value of Python, or None if it belongs to the sentence."""
    if get_origin(kind) is dict:
        text = text.strip("'")
        if text.startswith("{"):
            return repr(parse_value(text, kind))
        key, equals, value = text.partition("=")
        return f"{{{key!r}: {_literal(value)}}}" if equals else None
    if not re.search(r"[^a-z]", text) and text not in _choices(name):
        return None
    if kind in (int, float) and not (_NUMBER.fullmatch(text) or _BLANK.fullmatch(text)):
        return None
    return f"[{_literal(text)}]" if get_origin(kind) is list else _literal(text)


def _choices(name: str) -> Iterable[str]:
    from ptq_cli.setup.recipes import names_of

    return names_of(FLAG_KEYS[name]) if name in FLAG_KEYS else ()


def _literal(text: str) -> str:
    if _NUMBER.fullmatch(text) or _BLANK.fullmatch(text) or text.startswith(("'", "[")):
        return text
    if text in ("true", "false"):
        return text.capitalize()
    if _NUMBER.fullmatch(text.partition(",")[0]):
        return f"[{text.replace(',', ', ')}]"
    return repr(text)
