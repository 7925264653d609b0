"""Settings that are paths or entry points: made absolute, relative again, and those that name code."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from ptq_cli.core.entry_points import is_entry_point, resolve_entry_point
from ptq_cli.core.read_files import require_name
from ptq_cli.core.trust import PICKLE, code_key, model_key
from ptq_cli.recipe.schema import SETTINGS, Recipe

TORCHSCRIPT = "TorchScript"  # The kind of model whose operators are a program.
_OUTPUT = re.compile(r"(.*?:\w+)\[.+\]", re.DOTALL)  # A metric with the output that it judges.


def code_settings(table: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a recipe's resolved tables that name code, by the key of the code.

    Example:
        >>> code_settings({"evaluation": {"data": "eval.npz", "metrics": ["top1", "package.own:f1[boxes]"]}})
        {'package.own:f1': 'evaluation.metrics'}
        >>> code_settings({"metric": [{"metric": "package.own:f1", "arguments": {"mean": True}}]})
        {'package.own:f1 {"mean": true}': 'metric.metric'}
    """
    return dict(_code(table))


def _code(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for item in table.get("metric", ()):
        yield code_key(_OUTPUT.sub(r"\1", item["metric"]), item.get("arguments")), "metric.metric"
    for key, declared in SETTINGS.items():
        section, _, name = key.partition(".")
        if section == "metric" or not (declared.is_location or declared.is_entry_point):
            continue
        value = table.get(section, {}).get(name) or ()
        for text in (value,) if isinstance(value, str) else value:
            code = _OUTPUT.sub(r"\1", text) if declared.is_entry_point else text
            if is_entry_point(code):
                yield code_key(code), key
    model = table.get("model", {})
    if model.get("trust_pickle"):
        yield PICKLE, "model.trust_pickle"
    if model.get("path") is not None:
        yield model_key(model["path"], TORCHSCRIPT), "model.path"


def map_locations(table: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """A recipe's nested tables with each location changed."""
    return _map(Recipe, table, change)


def _map(kind: Any, table: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    known = {item.name: item for item in fields(kind)}
    return {name: _map_value(known[name], value, change) for name, value in table.items()}


def _map_value(item: "Field[Any]", value: Any, change: Callable[[str], str]) -> Any:
    (inner,) = get_args(item.type) if get_origin(item.type) is list else (item.type,)
    if isinstance(inner, type) and is_dataclass(inner):
        return (
            [_map(inner, entry, change) for entry in value]
            if isinstance(value, list)
            else (_map(inner, value, change))
        )
    if item.metadata.get("location") and value is not None:
        is_name = item.metadata.get("or_name") and not is_target_file(value)
        return value if is_name else change(value)
    if item.metadata.get("entry_points"):
        named = [_map_entry_point(text, change) for text in ([value] if isinstance(value, str) else value)]
        return named if isinstance(value, list) else named[0]
    return value


def _map_entry_point(text: str, change: Callable[[str], str]) -> str:
    """Change the file of ``file.py:callable`` or ``file.py:callable[output]``; other names stay."""
    location, colon, rest = text.partition(".py:")
    name, bracket, output = rest.partition("[")
    if not colon or not name.isidentifier():
        return text
    return f"{change(f'{location}.py:{name}')}{bracket}{output}"


def is_target_file(text: str) -> bool:
    """Whether a target is named by its file, and not by its name.

    Example:
        >>> is_target_file("ort-cpu"), is_target_file("mine.toml"), is_target_file("./mine")
        (False, True, True)
    """
    return text.endswith(".toml") or "/" in text or os.sep in text


def resolve_location(text: str, folder: Path) -> str:
    """A path or ``file.py:callable`` with the path made absolute.

    Edge case: ``package.module:callable`` stays as it is, unless a file of that very name exists. ``~`` is
        the user's home.
    """
    # Not Path.expanduser(), which raises where there is no such user; such a name is a file's.
    text = os.path.expanduser(text)  # noqa: PTH111
    is_code = is_entry_point(text) and not (folder / text).exists()
    # Not Path.resolve(): a link that the user named stays a link in messages.
    location = resolve_entry_point(text, folder) if is_code else os.path.normpath(folder / text)
    require_name(location)
    return location


def relative_location(location: str, folder: Path) -> str:
    """A resolved location relative to ``folder``, so that a folder can move with its files."""
    path, name = location, ""
    if is_entry_point(location) and not Path(location).exists():
        path, _, name = location.rpartition(":")
        if not path.endswith(".py"):
            return location
    relative = os.path.relpath(path, folder.absolute())
    # Without ./ a file called ``~x`` or ``a:b`` would be read again as a home or as an entry point.
    if relative.startswith("~") or (not name and is_entry_point(relative)):
        relative = f"./{relative}"
    return f"{relative}:{name}" if name else relative
