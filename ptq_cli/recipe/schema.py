"""Every setting of ptq in one value, with its default; and its strict decoding from plain tables.

A section is a dataclass in ``sections``, a key is a field, and adding a setting needs no other change. What
is declared to be a location holds a path or a ``file.py:callable``; it is relative to the folder of the file
that names it.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.core.read_files import require_name
from ptq_cli.core.words import did_you_mean
from ptq_cli.recipe.declaration import Setting, settings_of
from ptq_cli.recipe.sections import (
    AccuracySettings,
    ActivationSettings,
    AmaxSettings,
    CalibrationSettings,
    DataSettings,
    EvaluationSettings,
    ExportSettings,
    GateSettings,
    ImageSettings,
    MetricSettings,
    ModelSettings,
    OverrideSettings,
    QuantizationSettings,
    RecoverySettings,
    RuntimeSettings,
    TextSettings,
    TuneSettings,
    WeightSettings,
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings, resolved."""

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    amax: AmaxSettings = field(default_factory=AmaxSettings)
    weights: WeightSettings = field(default_factory=WeightSettings)
    activations: ActivationSettings = field(default_factory=ActivationSettings)
    override: list[OverrideSettings] = field(default_factory=list)
    quantization: QuantizationSettings = field(default_factory=QuantizationSettings)
    accuracy: AccuracySettings = field(default_factory=AccuracySettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    export: ExportSettings = field(default_factory=ExportSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    metric: list[MetricSettings] = field(default_factory=list)
    gate: GateSettings = field(default_factory=GateSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)


# First part of the names of a section's settings in Python, where no name is declared.
PREFIXES = {"amax": "amax_", "weights": "weight_", "activations": "activation_"}


def sections() -> Iterator[tuple[str, Any, bool]]:
    """Yield each section's name, its dataclass, and whether a recipe can have several of it.

    Example:
        >>> [name for name, _, several in sections() if several]
        ['override', 'metric']
    """
    for item in fields(Recipe):
        several = get_origin(item.type) is list
        yield item.name, get_args(item.type)[0] if several else item.type, several


def _declared() -> Iterator[Setting]:
    for section, kind, several in sections():
        # What a recipe can have several of is set by neither flags nor keyword arguments.
        found = settings_of(kind, section, PREFIXES.get(section, ""))
        yield from (replace(item, name="") if several else item for item in found)


# Every setting by its key, such as ``"amax.bins"``, in the order of a recipe.
SETTINGS: dict[str, Setting] = {item.key: item for item in _declared()}


_Settings = TypeVar("_Settings")
# One value and several of each type, in messages.
_WORDS: dict[Any, tuple[str, str]] = {
    str: ("a string", "strings"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
}
_TABLE = ("a table", "tables")


def decode_recipe(table: Mapping[str, Any], where: str) -> Recipe:
    """The recipe that nested tables describe; what they leave out has its default."""
    return decode_table(Recipe, table, where)


def decode_table(kind: type[_Settings], table: Mapping[str, Any], where: str) -> _Settings:
    """The dataclass that a table describes; what it leaves out has its default."""
    decoded: _Settings = _Decoder(where).section(kind, table, "")
    return decoded


_hints = cache(get_type_hints)


@dataclass(frozen=True)
class _Decoder:
    """Makes values of declared types of what TOML holds; ``where`` it stands begins each message."""

    where: str

    def value(self, kind: Any, value: Any, place: str) -> Any:
        if is_dataclass(kind):
            return self.section(kind, value, place)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is list:
            if not isinstance(value, list):
                raise self.refusal(value, f"a list of {_WORDS.get(arguments[0], _TABLE)[1]}", place)
            return [self.value(arguments[0], item, place) for item in value]
        if origin is dict:
            if not isinstance(value, Mapping):
                raise self.refusal(value, _TABLE[0], place)
            return {
                self.leaf(str, key, place): self.value(arguments[1], item, f"{place}.{key}")
                for key, item in value.items()
            }
        if origin is UnionType:
            first, *others = arguments
            return value if isinstance(value, tuple(others)) else self.value(first, value, place)
        return self.leaf(kind, value, place)

    def section(self, kind: Any, table: Any, place: str) -> Any:
        if not isinstance(table, Mapping):
            raise self.refusal(table, _TABLE[0], place)
        self.require_keys(kind, table, place)
        hints, prefix = _hints(kind), f"{place}." if place else ""
        return kind(**{key: self.value(hints[key], item, prefix + key) for key, item in table.items()})

    def require_keys(self, kind: type, table: Mapping[str, Any], place: str) -> None:
        known, prefix = [item.name for item in fields(kind)], f"{place}." if place else ""
        for key in table:
            if key not in known:
                section = f"[{place}]" if place else "the top level"
                raise RecipeKeyError(
                    f"{self.where}: unknown key '{prefix}{key}'{did_you_mean(key, known)}",
                    hint=f"{section} has: {', '.join(known)}",
                )
        for item in fields(kind):
            # An empty path would be resolved to the recipe's folder, and read as one of images.
            if item.metadata.get("location") and table.get(item.name) == "":
                raise self.refusal("", "a path", prefix + item.name)
            required = item.default is MISSING and item.default_factory is MISSING
            if required and item.name not in table:
                raise RecipeValueError(
                    f"{self.where}: '{prefix}{item.name}' is missing", hint=f"add '{item.name}'"
                )

    def leaf(self, kind: Any, value: Any, place: str) -> Any:
        # What a metric of the user's is given, it alone knows.
        if kind is Any:
            return value
        if isinstance(value, str):
            if "\0" in value:
                raise self.refusal(value, "text without a NUL character", place)
            require_name(value, is_path=False)
        if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.refusal(value, _WORDS[kind][0], place)
        return value

    def refusal(self, value: Any, wanted: str, place: str) -> RecipeValueError:
        return RecipeValueError(
            f"{self.where}: '{place}' is {value!r:.80}, expected {wanted}", hint=f"correct '{place}'"
        )
