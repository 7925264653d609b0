"""An option for each setting that a quantizer is drawn with, made from the families' table."""

from collections.abc import Callable
from typing import Any

from ptq_cli.cli.help_sections import OWN, option
from ptq_cli.recipe.declaration import Setting
from ptq_cli.recipe.quantizer_families import FAMILIES


def take_drawn(command: Any) -> Any:
    """Add an option for each setting, whichever families have it; None where it was not given."""
    users: dict[str, list[tuple[str, Setting]]] = {}
    for family in FAMILIES.values():
        for parameter in family.drawn:
            users.setdefault(parameter.name, []).append((family.name, parameter))
    for name, found in reversed(users.items()):
        command = _option(name, found)(command)
    return command


def _option(name: str, found: list[tuple[str, Setting]]) -> Callable[[Any], Any]:
    parameter = found[0][1]
    families = ", ".join(family for family, _ in found)
    default, flag = parameter.default, name.replace("_", "-")
    text = f"{parameter.help.removesuffix('.')} ({families} only).  [default: {shown_value(default)}]"
    if isinstance(default, bool):
        return option(OWN, f"--{flag}/--no-{flag}", name, default=None, help=text)
    metavar = "N" if isinstance(default, int) else "X"
    return option(OWN, f"--{flag}", name, type=type(default), metavar=metavar, help=text)


def shown_value(value: object) -> str:
    """Write a parameter's value; None is one that is found from the values.

    Example:
        >>> [shown_value(value) for value in (8, 0.25, True, "channel", None)]
        ['8', '0.25', 'yes', 'channel', 'found']
    """
    if value is None:
        return "found"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
