"""How the values of options are parsed."""

import json
from typing import Any

import click

from ptq_cli.core.errors import UsageError


class NumberList(click.ParamType[list[Any]]):
    """``0.485,0.456,0.406``.

    Example:
        >>> NumberList(float).convert("0.5,0.25", None, None)
        [0.5, 0.25]
    """

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind
        self.name = "N,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Return the numbers of a text."""
        if isinstance(value, list):
            return value
        try:
            return [self._kind(part) for part in str(value).split(",")]
        except ValueError:
            wanted = "whole numbers" if self._kind is int else "numbers"
            self.fail(f"{value!r} is not a comma-separated list of {wanted}", param, ctx)


class NameList(click.ParamType[list[str]]):
    """``round,other``.

    Example:
        >>> NameList().convert("round, other", None, None)
        ['round', 'other']
    """

    name = "NAME,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Return the names of a text."""
        names = value if isinstance(value, list) else [part.strip() for part in str(value).split(",")]
        if not all(names):
            self.fail(f"{value!r} is not a comma-separated list of names", param, ctx)
        return names


def parse_shapes(texts: tuple[str, ...]) -> dict[str, list[int]]:
    """Parse ``x=1,3,224,224`` texts.

    Raises:
        UsageError: a text is not ``NAME=N,N,…``.

    Example:
        >>> parse_shapes(("x=1,3,8,8",))
        {'x': [1, 3, 8, 8]}
    """
    shapes = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        try:
            shapes[name] = [int(size) for size in sizes.split(",")]
        except ValueError:
            equals = ""
        if not equals or not name:
            raise UsageError(
                f"--input-shape '{text}' is not of the form NAME=N,N,…", hint="--input-shape x=1,3,224,224"
            )
    return shapes


def parse_values(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse ``sr=16000`` texts; a value is written as in JSON.

    Raises:
        UsageError: a text is not ``NAME=VALUE``, or two give different values for the same name.

    Example:
        >>> parse_values(("sr=16000", "scale=[1, 0.5]", "train=false"))
        {'sr': 16000, 'scale': [1, 0.5], 'train': False}
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            equals = ""
        if not equals or not name:
            raise UsageError(
                f"--input '{text[:80]}' is not of the form NAME=VALUE with a number, true, false or a list",
                hint="for example: --input sr=16000 --input scale=[1,2]",
            )
        if name in values and values[name] != value:
            raise UsageError(
                f"--input gives '{name}' two values: {values[name]} and {value}", hint="give one value"
            )
        values[name] = value
    return values


def parse_renames(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse ``image=x`` texts.

    Raises:
        UsageError: a text is not ``NAME=INPUT``, or two give different inputs for the same name.

    Example:
        >>> parse_renames(("image=x", "target=label"))
        {'image': 'x', 'target': 'label'}
    """
    names: dict[str, str] = {}
    for text in texts:
        name, _, new = text.partition("=")
        if not name or not new:
            raise UsageError(
                f"--rename '{text}' is not of the form NAME=INPUT",
                hint="for example: --rename image=x, where x is an input of the model",
            )
        if names.setdefault(name, new) != new:
            raise UsageError(
                f"--rename gives '{name}' two names: '{names[name]}' and '{new}'",
                hint="give one input for each array",
            )
    return names


def parse_batch_axes(texts: tuple[str, ...]) -> dict[str, int | str]:
    """Parse ``state=1`` texts; ``none`` alone is for all inputs.

    Raises:
        UsageError: a text is not ``NAME=AXIS``, or two give different axes for the same name.

    Example:
        >>> parse_batch_axes(("state=1", "table=none")), parse_batch_axes(("none",))
        ({'state': 1, 'table': 'none'}, {'*': 'none'})
    """
    axes: dict[str, int | str] = {}
    for text in texts:
        name, _, axis = text.rpartition("=") if text != "none" else ("*", "", text)
        if not name or not (axis == "none" or axis.isdecimal()):
            raise UsageError(
                f"--batch-axis '{text}' is not of the form NAME=AXIS",
                hint="--batch-axis state=1, or --batch-axis none for whole steps",
            )
        found: int | str = axis if axis == "none" else int(axis)
        if axes.setdefault(name, found) != found:
            raise UsageError(
                f"--batch-axis names two axes of '{name}': {axes[name]} and {found}",
                hint="give one axis for each input",
            )
    return axes


def parse_overrides(texts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Parse ``head.*:weights.bits=4,weights.block_size=32`` texts.

    Raises:
        UsageError: a text is not ``PATTERN:KEY=VALUE,…``.

    Example:
        >>> parse_overrides(("head.*:weights.bits=4,activations.symmetric=true", ":op=Gemm,amax=mse"))
        [{'match': 'head.*', 'weights': {'bits': 4}, 'activations': {'symmetric': True}}, \
{'op': 'Gemm', 'amax': 'mse'}]
    """
    return [_parse_override(text) for text in texts]


def _parse_override(text: str) -> dict[str, Any]:
    # The pattern may contain colons, as tensor names from TensorFlow do; the first key does not.
    pattern, colon, first = text.partition("=")[0].rpartition(":")
    override: dict[str, Any] = {"match": pattern} if pattern else {}
    for part in f"{first}{text[len(pattern) + len(colon) + len(first) :]}".split(","):
        name, equals, value = part.strip().partition("=")
        section, dot, key = name.rpartition(".")
        if not colon or not equals or not key:
            raise UsageError(
                f"--override '{text}' is not of the form PATTERN:KEY=VALUE,…",
                hint="--override 'head.*:weights.bits=4,weights.block_size=32'",
            )
        table = override.setdefault(section, {}) if dot else override
        table[key] = _plain_value(value)
    return override


def _plain_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_axes(texts: tuple[str, ...]) -> dict[str, int]:
    """Parse ``conv=1`` texts.

    Raises:
        UsageError: a text is not ``NAME=AXIS``, or two give different axes for the same name.

    Example:
        >>> parse_axes(("stem.*=1", "a=b=-1"))
        {'stem.*': 1, 'a=b': -1}
    """
    axes: dict[str, int] = {}
    for text in texts:
        name, _, axis = text.rpartition("=")
        try:
            found = int(axis)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(
                f"--activation-axis '{text}' is not of the form NAME=AXIS",
                hint="--activation-axis 'stem.*=1'",
            )
        if axes.setdefault(name, found) != found:
            raise UsageError(
                f"--activation-axis names two axes of '{name}': {axes[name]} and {found}",
                hint="give one axis for each tensor",
            )
    return axes
