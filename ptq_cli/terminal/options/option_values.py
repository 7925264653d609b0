"""How the values of options are parsed."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ptq_cli.core.errors import UsageError

Value = TypeVar("Value")


class NameList(click.ParamType[list[str]]):
    """``round,other``."""

    name = "NAME,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Return the names of a text."""
        names = value if isinstance(value, list) else [part.strip() for part in str(value).split(",")]
        if not all(names):
            self.fail(f"{value!r} is not a comma-separated list of names", param, ctx)
        return names


def parse_shapes(texts: Sequence[str]) -> dict[str, list[int]]:
    """Parse ``x=1,3,224,224`` texts."""
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


def _parse_pairs(
    texts: Sequence[str],
    parse: Callable[[str], tuple[str, Value] | None],
    *,
    form: str,
    example: str,
    twice: str,
    advice: str,
) -> dict[str, Value]:
    """Return the values by name; ``twice`` is what a name with two is told, and ``advice`` the hint."""
    values: dict[str, Value] = {}
    flag, _, wanted = form.partition(" ")
    for text in texts:
        pair = parse(text)
        if pair is None or not pair[0]:
            raise UsageError(f"{flag} '{text[:80]}' is not of the form {wanted}", hint=example)
        name, value = pair
        if values.setdefault(name, value) != value:
            told = twice.format(name=name, one=values[name], other=value)
            raise UsageError(f"{flag} {told}", hint=advice)
    return values


def parse_values(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``sr=16000`` texts; a value is written as in JSON."""
    return _parse_pairs(
        texts,
        _json_pair,
        form="--input NAME=VALUE with a number, true, false or a list",
        example="for example: --input sr=16000 --input scale=[1,2]",
        twice="gives '{name}' two values: {one} and {other}",
        advice="give one value",
    )


def parse_renames(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``image=x`` texts."""
    return _parse_pairs(
        texts,
        _text_pair,
        form="--rename NAME=INPUT",
        example="for example: --rename image=x, where x is an input of the model",
        twice="gives '{name}' two names: '{one}' and '{other}'",
        advice="give one input for each array",
    )


def parse_batch_axes(texts: Sequence[str]) -> dict[str, int | str]:
    """Parse ``state=1`` texts; ``none`` alone is for all inputs.

    Example:
        >>> parse_batch_axes(("state=1", "table=none")), parse_batch_axes(("none",))
        ({'state': 1, 'table': 'none'}, {'*': 'none'})
    """
    return _parse_pairs(
        texts,
        _batch_axis_pair,
        form="--batch-axis NAME=AXIS",
        example="--batch-axis state=1, or --batch-axis none for whole steps",
        twice="names two axes of '{name}': {one} and {other}",
        advice="give one axis for each input",
    )


def parse_carries(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``stateN=state`` texts; ``none`` alone is for no output.

    Example:
        >>> parse_carries(("stateN=state",)), parse_carries(("none",))
        ({'stateN': 'state'}, {'*': 'none'})
    """
    return _parse_pairs(
        texts,
        lambda text: _text_pair(text if text != "none" else "*=none"),
        form="--carry OUTPUT=INPUT",
        example="for example: --carry stateN=state, or --carry none",
        twice="gives '{name}' two inputs: '{one}' and '{other}'",
        advice="name each output once",
    )


def _json_pair(text: str) -> tuple[str, Any] | None:
    name, _, written = text.partition("=")
    try:
        return name, json.loads(written)
    except (ValueError, RecursionError):
        return None


def _text_pair(text: str) -> tuple[str, str] | None:
    name, _, value = text.partition("=")
    return (name, value) if value else None


def _batch_axis_pair(text: str) -> tuple[str, int | str] | None:
    name, _, axis = text.rpartition("=") if text != "none" else ("*", "", text)
    if axis == "none":
        return name, axis
    return (name, int(axis)) if axis.isdecimal() else None


def parse_overrides(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Parse ``head.*:weights.bits=4,weights.block_size=32`` texts.

    Example:
        >>> parse_overrides(("head.*:weights.bits=4,activations.symmetric=true",))
        [{'match': 'head.*', 'weights': {'bits': 4}, 'activations': {'symmetric': True}}]
        >>> parse_overrides((":op=Gemm,amax=mse",))
        [{'op': 'Gemm', 'amax': 'mse'}]
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
