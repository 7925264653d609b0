"""``--set KEY=VALUE``, a keyword argument of Python or a flag: settings by their keys in a recipe."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

from ptq_cli.core.errors import RecipeKeyError, UsageError
from ptq_cli.core.read_files import parse_toml
from ptq_cli.core.words import did_you_mean
from ptq_cli.recipe.declaration import REQUIRED, Setting, setting, settings_of
from ptq_cli.recipe.schema import SETTINGS, Recipe

FLAG_KEYS = {declared.name: key for key, declared in SETTINGS.items() if declared.name}  # Key by name.

# Flags of which each value is an override: the key that it is a pattern for, and ``quantize``.
OVERRIDE_FLAGS: dict[str, tuple[str, bool]] = {
    "include": ("match", True),
    "include_op": ("op", True),
    "exclude": ("match", False),
    "exclude_op": ("op", False),
}
# The flag for whole overrides. Overrides of flags follow those of the recipe, in this order.
OVERRIDE = "override"


def settings_to_table(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their names as a recipe's nested tables.

    A key that has no name, such as ``model.path``, is its own.

    Edge case: A percentile alone also sets the method to percentile, because no other method has one. With
        ``weight_amax="percentile"`` it is for the weights.
    """
    table: dict[str, Any] = {}
    known = [*FLAG_KEYS, *OVERRIDE_FLAGS, OVERRIDE]
    for name, value in settings.items():
        if name not in known and "." not in name:
            raise UsageError(
                f"there is no setting '{name}'{did_you_mean(name, known)}",
                hint=f"settings: {', '.join(known)}",
            )
        section, dot, field = FLAG_KEYS.get(name, name).partition(".")
        if dot:
            table.setdefault(section, {})[field] = value
    if "percentile" in settings and "amax" not in settings and settings.get("weight_amax") != "percentile":
        table["amax"]["method"] = "percentile"
    for name in (*OVERRIDE_FLAGS, OVERRIDE):
        # A text would be taken for the list of its characters.
        if not isinstance(settings.get(name, ()), (list, tuple)):
            raise UsageError(f"'{name}' is {settings[name]!r:.80}, expected a list", hint=f"correct '{name}'")
    overrides = [
        {key: pattern, "quantize": quantize}
        for name, (key, quantize) in OVERRIDE_FLAGS.items()
        for pattern in settings.get(name, ())
    ]
    overrides += settings.get(OVERRIDE, ())
    return {**table, "override": overrides} if overrides else table


_OPTION = "--set"
ONCE = "run"  # The section of the keys that hold for one command.
BLANKS = " \t"  # What may stand around a key and a value; names of tensors may end with other white space.
# Sections of which a recipe can have several, and what sets them.
TABLES = {
    OVERRIDE: "pass --set 'override=PATTERN:KEY=VALUE,…', or write [[override]] in a recipe",
    "metric": "write [[metric]] in a recipe",
}
KEYWORDS = {key: name for name, key in FLAG_KEYS.items()}  # Name of a setting by its key.


@dataclass(frozen=True, kw_only=True)
class Once:
    """``[run]``: what holds for one command; no recipe has these keys, and none is written with them."""

    restart: bool = setting(False, "Start over instead of continuing from a checkpoint.")
    evaluate: bool | None = setting(
        None, "Evaluate the quantized model; if not set, only if a limit or evaluation data is given."
    )


ONCE_KEYS = tuple(item.name for item in fields(Once))


@dataclass(frozen=True, kw_only=True)
class RecipeKey:
    """A key of a recipe, or one that holds for one command."""

    key: Annotated[str, "The key with its section."]
    type: Annotated[str, "What it takes, in words."]
    default: Annotated[Any, "Its value where nothing sets it; null if it then has none."]
    meaning: Annotated[str, "What it does, as one sentence."]


@dataclass(frozen=True)
class Keys:
    """What ``ptq recipe keys`` prints."""

    keys: Annotated[tuple[RecipeKey, ...], "Those that the pattern matches, in the order of a recipe."]


def setting_types() -> dict[str, Any]:
    """The type of each key that ``--set`` takes."""
    return {item.key: item.type for item in _declared() if item.key.partition(".")[0] not in TABLES}


def list_keys(pattern: str | None = None) -> list[RecipeKey]:
    """Every key, in order, that matches a pattern, with ``*`` as in a shell, or contains it."""
    found = [
        RecipeKey(
            key=item.key,
            type="path or entry point" if item.is_location else type_words(item.type),
            default=None if item.default is REQUIRED else item.default,
            meaning=item.sentence().partition(". ")[0].replace("`", "").removesuffix(".") + ".",
        )
        for item in _declared()
    ]
    if pattern is None:
        return found
    chosen = [item for item in found if pattern in item.key or fnmatchcase(item.key, pattern)]
    if not chosen:
        raise RecipeKeyError(
            f"no key matches '{pattern}'{_nearest(pattern)}", hint="ptq recipe keys lists all"
        )
    return chosen


def parse_assignments(texts: Sequence[str]) -> tuple[dict[str, Any], Once]:
    """The settings that texts ``KEY=VALUE`` set, and what holds for one command.

    A text stays a text where the key takes one; other values are written as in TOML, and lists also without
    brackets. Of two values for a key, the last one counts; each ``override=PATTERN:KEY=VALUE,…`` is one more.

    Values are by the name of the setting, as ``settings_to_table`` takes them. A key without a name is its
    own name.
    """
    settings: dict[str, Any] = {}
    once: dict[str, Any] = {}
    types = setting_types()
    for text in texts:
        path, equals, written = text.partition("=")
        if path.strip() == OVERRIDE and equals:
            settings.setdefault(OVERRIDE, []).append(parse_override(written))
            continue
        key, value = _parse(text, types)
        section, _, name = key.partition(".")
        if section == ONCE:
            _check(Once, {name: value})
            once[name] = value
            continue
        _check(Recipe, {section: {name: value}})
        name = KEYWORDS.get(key, key)
        is_table = isinstance(value, dict)
        settings[name] = {**settings.get(name, {}), **value} if is_table else value
    return settings, Once(**once)


def add_assignments(settings: Mapping[str, Any], assigned: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of flags together with those of ``--set``.

    Example:
        >>> add_assignments({"rename": {"a": "x"}, "samples": 8}, {"rename": {"b": "y"}})
        {'rename': {'a': 'x', 'b': 'y'}, 'samples': 8}
        >>> add_assignments({"samples": 8}, {"samples": 64})
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.UsageError: PTQ-USAGE-001: --samples and --set calibration.samples give \
different values: 8 and 64
        hint: give one of them
    """
    merged = dict(settings)
    for name, value in assigned.items():
        given, key = merged.get(name), FLAG_KEYS.get(name, name)
        if isinstance(value, dict) and isinstance(given, dict):
            for part in given.keys() & value.keys():
                _require_same(name, f"{key}.{part}", given[part], value[part])
            merged[name] = {**given, **value}
            continue
        if given is not None:
            _require_same(name, key, given, value)
        merged[name] = value
    return merged


def _check(kind: type, table: Mapping[str, Any]) -> None:
    # It knows numpy's types, which neither help nor a gate alone waits for.
    from ptq_cli.recipe.schema import decode_table

    decode_table(kind, table, _OPTION)


def _require_same(flag: str, key: str, given: Any, value: Any) -> None:
    if given != value:
        raise UsageError(
            f"--{flag.replace('_', '-')} and {_OPTION} {key} give different values: {given} and {value}",
            hint="give one of them",
        )


def _declared() -> Iterator[Setting]:
    yield from SETTINGS.values()
    yield from settings_of(Once, ONCE)


# One value and several of each type.
_WORDS = {
    str: ("text", "texts"),
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    bool: ("true or false", "booleans"),
    Any: ("value", "values"),
}


def type_words(kind: Any, *, plural: bool = False) -> str:
    """A type in words."""
    options = [item for item in _members(kind) if item is not NoneType]
    if len(options) > 1:
        return " or ".join(type_words(item, plural=plural) for item in options)
    origin, arguments = get_origin(options[0]), get_args(options[0])
    if origin in (list, dict):
        return f"{'list' if origin is list else 'table'} of {type_words(arguments[-1], plural=True)}"
    return "table" if is_dataclass(options[0]) else _WORDS[options[0]][plural]


def _parse(text: str, types: Mapping[str, Any]) -> tuple[str, Any]:
    """The key of ``KEY=VALUE`` and its value; one name of a table is a table with that name."""
    path, equals, written = text.partition("=")
    section, _, rest = path.strip(BLANKS).partition(".")
    field, dot, name = rest.partition(".")
    key = f"{section}.{field}" if field else section
    if not equals or not section:
        raise UsageError(
            f"{_OPTION} '{text[:80]}' is not of the form KEY=VALUE",
            hint=f"for example: {_OPTION} amax.bins=1024",
        )
    if section in TABLES:
        raise UsageError(f"{_OPTION} cannot write '{key}': a recipe can have several", hint=TABLES[section])
    kind = types.get(key)
    is_table = get_origin(kind) is dict
    if kind is None or (dot and not is_table):
        raise RecipeKeyError(
            f"{_OPTION}: unknown key '{path.strip()[:80]}'{_nearest(path)}",
            hint="ptq recipe keys lists all keys",
        )
    if not name:
        return key, parse_value(written, kind)
    inner = get_args(kind)[1]
    if inner not in (str, Any):
        # Names of tensors and outputs may contain "=", and numbers do not.
        name, _, written = f"{name}={written}".rpartition("=")
    return key, {name: parse_value(written, inner)}


def parse_override(text: str) -> dict[str, Any]:
    """Return the table of an override that is written as ``PATTERN:KEY=VALUE,…``.

    Example:
        >>> parse_override("head.*:weights.bits=4,activations.symmetric=true")
        {'match': 'head.*', 'weights': {'bits': 4}, 'activations': {'symmetric': True}}
        >>> parse_override(":op=Gemm,amax=mse")
        {'op': 'Gemm', 'amax': 'mse'}
    """
    # The pattern may contain colons, as tensor names from TensorFlow do; the first key does not.
    pattern, colon, first = text.partition("=")[0].rpartition(":")
    override: dict[str, Any] = {"match": pattern} if pattern else {}
    for part in f"{first}{text[len(pattern) + len(colon) + len(first) :]}".split(","):
        name, equals, value = part.strip().partition("=")
        section, dot, key = name.rpartition(".")
        if not colon or not equals or not key:
            raise UsageError(
                f"{_OPTION} '{OVERRIDE}={text}' is not of the form {OVERRIDE}=PATTERN:KEY=VALUE,…",
                hint=f"{_OPTION} '{OVERRIDE}=head.*:weights.bits=4,weights.block_size=32'",
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


def parse_value(text: str, kind: Any) -> Any:
    """The value of a text for a key of that type; one that does not fit stays a text.

    Example:
        >>> parse_value("8", str), parse_value("8", int), parse_value("true", bool | None)
        ('8', 8, True)
        >>> parse_value("0.5,1", list[float]), parse_value("[0.5]", list[float]), parse_value("7", list[str])
        ([0.5, 1], [0.5], ['7'])
        >>> parse_value("1%", float | str), parse_value("0.01", float | str)
        ('1%', 0.01)
    """
    text = text.strip(BLANKS)
    options = [item for item in _members(kind) if item is not NoneType]
    if text.startswith(("'", '"')) and str in options:
        return _toml(text)
    if options == [str]:
        return text
    if get_origin(options[0]) is list and not text.startswith("["):
        (inner,) = get_args(options[0])
        return [parse_value(part, inner) for part in text.split(",")]
    value = _toml(text)
    if float in options and value == text:
        try:  # Numbers that TOML does not know, such as .5 and 1.
            return float(text)
        except ValueError:
            return text
    return value


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _toml(text: str) -> Any:
    try:
        found = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return found["value"] if len(found) == 1 else text


def _nearest(name: str) -> str:
    """The nearest key for a message: of keys, of their last parts, and of the names in Python."""
    keys = {key: key for key in setting_types()}
    names = (
        {key.partition(".")[2]: key for key in keys} | {name: key for key, name in KEYWORDS.items()} | keys
    )
    found = get_close_matches(name.strip().replace("-", "_"), list(names), n=1, cutoff=0.6)
    return f" (did you mean '{names[found[0]]}'?)" if found else ""
