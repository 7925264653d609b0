"""Errors of a call in the words of Python: its arguments, and not the options of the command line."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast, get_origin, get_type_hints

from ptq_cli.api.passed_objects import onnx_file, pass_data, pass_model
from ptq_cli.core.errors import PtqError, UsageError
from ptq_cli.recipe.assignments import ONCE, ONCE_KEYS, setting_types
from ptq_cli.recipe.flags import FLAG_KEYS
from ptq_cli.recipe.keyword_settings import Settings
from ptq_cli.setup.resolve import COMMAND_LINE, Request

P = ParamSpec("P")
R = TypeVar("R")

KEYS = {
    **{key: name for name, keys in FLAG_KEYS.items() for key in keys},
    **{f"{ONCE}.{name}": name for name in ONCE_KEYS},
}
"""The argument that each key of a recipe is."""
_CALLS = {
    "evaluate --shard": "evaluate_shard",
    "calibration show": "show_calibration",
    "report": "report_page",
}
"""What commands are called in Python, if not as in the terminal."""
_SAME = (
    "calibrate export evaluate analyze drift quantize tune verify bench inspect prepare merge explain compare"
)
_COMMAND = re.compile(rf"\bptq ({'|'.join([*_CALLS, *_SAME.split()])})\b((?: [a-z_]+=\S*[^\s,.;:])*)")
_OPTION = re.compile(
    r"--(?P<no>no-)?(?P<name>[a-z][a-z-]*[a-z])\b"
    r"(?: (?P<value>(?:[\w.]+=)?'[^']*'|[^\s'-]\S*?(?=[.,;:)]*(?:\s|$))))?"
)
_SET = re.compile(
    r"--set (?P<quote>'?)(?P<key>[a-z]+\.[a-z_]+)(?P<rest>[.=][^\s']*?)(?P=quote)(?=[.,;:)]*(?:\s|$))"
)
_PASSED = re.compile(r"ptq_cli\.api\.passed_objects:([0-9A-Za-z]*)_[0-9a-f]{16}(_[0-9]+)?")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_BLANK = re.compile(r"[A-Z]+(\.[a-z]+)?|…")
"""What a reader is to fill in, such as FILE."""


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
    """Return a message with arguments where it has options, and calls where it has commands.

    Example:
        >>> kinds = get_type_hints(Settings)
        >>> in_python("pass --batch-size 1, or run ptq evaluate --metric top1_loss again", kinds)
        "pass batch_size=1, or run ptq_cli.evaluate(metric=['top1_loss']) again"
        >>> in_python("--set text.window=8, or --set evaluation.latency=false", kinds)
        'window=8, or latency=False'
        >>> in_python("the command line: 'evaluation.metrics' is 'top1'", kinds, ["metric"])
        "'metric' is 'top1'"
    """
    if COMMAND_LINE in text:
        text = text.replace(f"{COMMAND_LINE}: ", "").replace("expected a table", "expected a dict")
    for name in given:
        for key in (key for key, meant in KEYS.items() if meant == name):
            text = text.replace(f"'{key}'", f"'{name}'")
    for words, name in _CALLS.items():
        text = re.sub(rf"\bptq {words}\b", f"ptq_cli.{name}()", text)
    text = _SET.sub(_option, text.replace("add --trust-code", "call it in a block of ptq_cli.trust_code()"))
    text = _OPTION.sub(lambda match: _argument(match, kinds), _PASSED.sub(r"\1", text))
    return _COMMAND.sub(lambda match: f"ptq_cli.{match[1]}({', '.join(match[2].split())})", text)


def _option(match: re.Match[str]) -> str:
    """Return ``--set KEY=VALUE`` as an option of its own, with the name of the argument."""
    flag = KEYS[match["key"]].replace("_", "-")
    value, quote = match["rest"][1:], match["quote"]
    if setting_types()[match["key"]] in (bool, bool | None):
        return f"--{'no-' if value == 'false' else ''}{flag}"
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
    """Return the word after an option as a value of Python, or None if it belongs to the sentence."""
    if get_origin(kind) is dict:
        key, equals, value = text.partition("=")
        return f"{{{key!r}: {_literal(value)}}}" if equals else None
    if not re.search(r"[^a-z]", text) and text not in _choices(name):
        return None
    if kind in (int, float) and not (_NUMBER.fullmatch(text) or _BLANK.fullmatch(text)):
        return None
    return f"[{_literal(text)}]" if get_origin(kind) is list else _literal(text)


def _choices(name: str) -> Iterable[str]:
    from ptq_cli.setup.recipe_schema import names_of

    return names_of(FLAG_KEYS[name][0]) if name in FLAG_KEYS else ()


def _literal(text: str) -> str:
    if _NUMBER.fullmatch(text) or _BLANK.fullmatch(text) or text.startswith(("'", "[")):
        return text
    if text in ("true", "false"):
        return text.capitalize()
    if _NUMBER.fullmatch(text.partition(",")[0]):
        return f"[{text.replace(',', ', ')}]"
    return repr(text)


# The arguments of an API function as the request that the commands make from options.


PathLike = str | Path
ModelLike = PathLike | Any
"""A file, a ``torch.nn.Module``, an ``onnx.ModelProto`` or an ``onnx_ir.Model``."""
EVALUATION_NAMES = {"data": "eval_data", "samples": "eval_samples"}
"""Settings of the evaluation by the names that they have where there are no others."""


def request_of(
    settings: Settings, model: ModelLike | None, recipe: PathLike | None, preset: str | None
) -> Request:
    """Return a request with settings by the names of their options."""
    path, found = pass_model(model, settings)
    for name in ("data", "eval_data"):
        if name in found:
            found[name] = pass_data(found[name])
    if isinstance(values := found.get("input"), Mapping):
        found["input"] = {name: _plain(value) for name, value in values.items()}
    return Request(
        settings=found,
        model=path,
        recipe_file=Path(recipe) if recipe is not None else None,
        preset=preset,
    ).by_user()


def _plain(value: Any) -> Any:
    """Return a number, an array or a tensor as the number or the lists that a recipe can hold."""
    return value.tolist() if hasattr(value, "tolist") else value


def evaluation_request(settings: Settings, recipe: PathLike | None, preset: str | None) -> Request:
    """Return a request of a function that reads evaluation data alone.

    ``data`` and ``samples`` mean ``eval_data`` and ``eval_samples``, as they do on the command line.

    Example:
        >>> evaluation_request({"samples": 8}, None, None).settings
        {'eval_samples': 8}
    """
    found = dict(settings)
    for name, meant in EVALUATION_NAMES.items():
        if name in found and meant in found:
            raise UsageError(
                f"'{name}' and '{meant}' are both given, and mean the same here", hint=f"give only '{meant}'"
            )
    renamed = {EVALUATION_NAMES.get(name, name): value for name, value in found.items()}
    return request_of(cast("Settings", renamed), None, recipe, preset)


def as_path(path: PathLike | None) -> Path | None:
    """Return a path, or None if there is none."""
    return Path(path) if path is not None else None


def as_model_path(model: ModelLike | None) -> Path | None:
    """Return the path of an ONNX model, which is written if it is in memory; None if there is none."""
    return onnx_file(model) if model is not None else None
