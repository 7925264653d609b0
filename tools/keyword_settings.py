"""``ptq_cli/recipe/keyword_settings.py``: typed keyword arguments, from the declared settings."""

import types
import typing
from typing import Any

from ptq_cli.recipe.assignments import OVERRIDE, OVERRIDE_FLAGS
from ptq_cli.recipe.schema import SETTINGS

# Names that some functions have for an argument of their own, which a ``TypedDict`` may then not have.
OWN = ("profile", "threads")
HEAD = '''\
"""The settings as typed keyword arguments: written from ``sections`` by ``python -m tools.generate_docs``."""

from typing import Any, TypedDict


class SharedSettings(TypedDict, total=False):
    """The settings whose names no function has for an argument of its own."""

'''
OWN_HEAD = '''

class Settings(SharedSettings, total=False):
    """The settings of a recipe by their names; what is not given comes from the lower layers."""

'''


def keyword_settings() -> str:
    """Return the module."""
    kinds = {item.name: _written(item.type, item.takes_objects) for item in SETTINGS.values() if item.name}
    kinds |= dict.fromkeys(OVERRIDE_FLAGS, "list[str]") | {OVERRIDE: "list[dict[str, Any]]"}
    lines = {name: f"    {name}: {kind}\n" for name, kind in kinds.items()}
    shared = "".join(line for name, line in lines.items() if name not in OWN)
    return HEAD + shared + OWN_HEAD + "".join(lines[name] for name in OWN)


def _written(kind: Any, takes_objects: bool = False) -> str:
    """Return a type as it is written in Python.

    Example:
        >>> _written(dict[str, int | str]), _written(float)
        ('dict[str, int | str]', 'float')
    """
    if kind is Any or takes_objects:
        return "Any"
    origin, arguments = typing.get_origin(kind), [_written(item) for item in typing.get_args(kind)]
    if origin is types.UnionType:
        return " | ".join(arguments)
    return f"{origin.__name__}[{', '.join(arguments)}]" if origin else str(kind.__name__)
