"""``docs/recipe.md``: every setting, from the schema, the flags and the checks of the recipe."""

import inspect
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ptq_cli.amax.method_registry import AUTO, METHODS
from ptq_cli.collectors.collector_registry import COLLECTORS
from ptq_cli.core.json_schema import attribute_texts, sentence
from ptq_cli.plan.target.target_file import load_target, target_names
from ptq_cli.recipe.check import RULES
from ptq_cli.recipe.flags import FLAG_KEYS, OVERRIDE
from ptq_cli.recipe.quantizer_settings import FAMILY_SETTINGS
from ptq_cli.recipe.recipe_layers import DEFAULT_PRESET, PRESETS, preset_names, recipe_to_toml
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.metrics.metric_registry import (
    LABEL_METRICS,
    PAIR_METRICS,
    REQUESTED_COMPARISONS,
    make_label_metric,
)
from tools.pages.page_commands import every_option
from tools.tables import code, table

INTRODUCTION = """\
# Recipe

A recipe is a TOML file. On the command line, `--set KEY=VALUE` sets any key, such as `--set image.mean=0.5`,
and flags set the common ones; `ptq recipe keys` lists all. Settings come from several layers. Each layer
overrides the ones before it, key by key; a list replaces the whole earlier list. [Overrides](#override) of
flags follow those of recipes:

1. the preset (`--preset`, default `{preset}`)
2. `./ptq.toml`, if the current folder has one
3. `--recipe FILE`
4. for `ptq export` and `ptq evaluate`: the flags of the calibration that its statistics depend on
5. the flags and `--set`; both may give a key only if they agree

After `--set`, a text is written as it is, other values as in TOML, and a list also as `1,2,3`:
`--set image.mean=0.5,0.4,0.3`. An entry of a table has its name behind the key: `--set
gate.max_drop.top1=1%`. Of two values for a key, the last one counts. Keys of `[run]` hold for one command,
and no recipe has them: `run.restart`, `run.evaluate`, `run.thumbnails`, `run.suffix`.

A section `[weights]` or `[activations]` that names a quantizer replaces the section of all earlier layers. A
preset that is named on the command line overrides `recipe.toml` in the run directory.

An unknown key or a value of the wrong type is an error that names the nearest known key. A path in a recipe
is relative to the recipe's folder; a path in a flag is relative to the current folder.
`ptq calibrate`, `ptq export` and `ptq quantize` write the resolved recipe to `recipe.toml` in the run
directory. `ptq export` and `ptq evaluate` read it if there is neither `./ptq.toml` nor `--recipe`.

If there is one of these, and neither it nor a flag names data, the run directory's are used: `ptq evaluate`
takes those of the last evaluation, or those that the model was quantized with, and says so in a note; `ptq
analyze`, `verify` and `bench` name the data with their results; `ptq tune` of the same model takes those of
the calibration ([0022](decisions/0022-what-a-run-remembers.md)).

`ptq quantize` evaluates if there is a limit, if evaluation data or a metric is given, or with `--set
run.evaluate=true`. Data under `[evaluation]` alone are for `ptq evaluate`, which it names in its last line.

`ptq export` writes it together with the run's own model, so the flags of such an export hold for
later ones. `ptq export --output FILE` writes only FILE, and its flags hold for that file alone. `ptq export
--reset` leaves out what earlier exports set: ranges, quantizers and overrides are again those of the preset,
and the target is that of the calibration.

`ptq recipe init MODEL` writes a commented `ptq.toml` for a model, `ptq recipe check` tells whether a recipe
is correct and, if it names a model, whether it names the data to quantize it with, and `ptq recipe schema`
writes [the JSON Schema](recipe.schema.json) for editors.
"""
WORDS = {
    str: ("string", "strings"),
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    bool: ("true or false", "booleans"),
    Any: ("value", "values"),
}
"""Singular and plural of each type."""


def recipe_page() -> str:
    """Return the page."""
    hints = typing.get_type_hints(Recipe)
    sections = [_section(item.name, hints[item.name]) for item in fields(Recipe)]
    parts = [INTRODUCTION.format(preset=DEFAULT_PRESET), *sections, _quantizers()]
    parts += [_names(), _presets(), _defaults()]
    return "\n".join(parts)


def _section(name: str, kind: Any) -> str:
    # A list of tables is written as one [[name]] per table.
    title = name
    if typing.get_origin(kind) is list:
        (kind,) = typing.get_args(kind)
        title = f"[[{name}]]"
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise TypeError(f"[{name}] is not a section")
    summary = (inspect.getdoc(kind) or "").splitlines()[0].partition(": ")[2].replace("``", "`")
    meanings, hints = attribute_texts(kind), typing.get_type_hints(kind)
    rows = [
        (
            code(item.name),
            _type(hints[item.name], location=bool(item.metadata.get("location"))),
            _default(item),
            _flag(f"{name}.{item.name}"),
            sentence(meanings[item.name]) + _range(f"{name}.{item.name}"),
        )
        for item in fields(kind)
    ]
    header = ["setting", "type", "default", "flag", "meaning"]
    return f"## {title}\n\n{sentence(summary)}\n\n{table(header, rows)}\n"


def _type(hint: Any, *, location: bool) -> str:
    if isinstance(hint, types.UnionType):
        hint = next(item for item in typing.get_args(hint) if item is not types.NoneType)
    return "path or entry point" if location else _words(hint)


def _words(hint: Any, *, plural: bool = False) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return " or ".join(_words(item, plural=plural) for item in arguments)
    if origin is list:
        return f"{'lists' if plural else 'list'} of {_words(arguments[0], plural=True)}"
    if origin is dict:
        return f"table of {_words(arguments[1], plural=True)}"
    if is_dataclass(hint):
        return f"table like [{type_section(hint)}]"
    return WORDS[hint][plural]


def type_section(kind: Any) -> str:
    """Return the name of the section that a dataclass describes."""
    hints = typing.get_type_hints(Recipe)
    return next(name for name, hint in hints.items() if hint is kind)


def _default(item: "Field[Any]") -> str:
    if item.default is MISSING and item.default_factory is MISSING:
        return "required"
    value = item.default_factory() if item.default_factory is not MISSING else item.default
    if value is None:
        return "none"
    # Booleans, strings and lists of numbers look the same in JSON and TOML.
    return code(json.dumps(value))


def _flag(key: str) -> str:
    if key == "model.path":
        return "the argument `MODEL`"
    if key.startswith(f"{OVERRIDE}."):
        return code(f"--{OVERRIDE}") + (", `--exclude`" if key == "override.quantize" else "")
    flags = (f"--{name.replace('_', '-')}" for name, keys in FLAG_KEYS.items() if key in keys)
    return ", ".join(code(flag) for flag in flags if flag in every_option())


def _range(key: str) -> str:
    wanted = next((rule[3] for rule in RULES if rule[0] == key), "")
    return f" It must be {wanted}." if wanted else ""


def _quantizers() -> str:
    rows = []
    for name, family in FAMILY_SETTINGS.items():
        for section, kind in (("[weights]", family.weights), ("[activations]", family.activations)):
            rows += _parameters(code(name), section, kind) if kind is not None else []
    refusals = [
        f"- `{name}` cannot quantize activations: {family.refusal}."
        for name, family in FAMILY_SETTINGS.items()
        if family.activations is None
    ]
    summaries = [(code(name), _summary(item.weights)) for name, item in FAMILY_SETTINGS.items()]
    parts = [
        "## Quantizers",
        "The quantizers that `[weights]` and `[activations]` can name. Their formulas are in\n"
        "[quantizers.md](quantizers.md).",
        table(["quantizer", "for weights"], summaries),
        table(["quantizer", "section", "parameter", "default", "meaning"], rows),
        "\n".join(refusals),
        "None of these settings changes what a calibration collects: `ptq export` can use any of them\n"
        "with the same calibration.",
    ]
    return "\n\n".join(parts) + "\n"


def _summary(kind: type) -> str:
    return (inspect.getdoc(kind) or "").splitlines()[0]


def _parameters(name: str, section: str, kind: Any) -> list[tuple[str, ...]]:
    meanings = attribute_texts(kind) if fields(kind) else {}
    return [
        (
            name,
            code(section),
            code(item.name),
            _default(item),
            sentence(meanings[item.name]) + f" It must be {item.metadata['wanted']}.".replace("'", "`"),
        )
        for item in fields(kind)
    ]


def _names() -> str:
    asked = (*LABEL_METRICS, *REQUESTED_COMPARISONS)
    floors = [name for name, metric in PAIR_METRICS.items() if metric.higher_is_better]
    errors = [name for name in LABEL_METRICS if not make_label_metric(name, {}).higher_is_better]
    rows = [
        ("`calibration.method`", _listed(COLLECTORS)),
        ("`amax.method`, `override.amax`", _listed((AUTO, *METHODS))),
        ("`amax.weight_method`, `override.weight_amax`", _listed(METHODS)),
        ("`evaluation.metrics`", f"{_listed(asked)}, or code; see [metrics.md](metrics.md)"),
        (
            "`gate.max_drop`",
            f"{_listed(LABEL_METRICS)}, or the name of your own metric, if both models have it",
        ),
        (
            "`gate.max_ratio`",
            f"{_listed(errors)}, or the name of your own metric, if it is better when lower",
        ),
        ("`gate.max_regression`", _listed((*asked, *PAIR_METRICS))),
        ("`gate.min`", _listed((*asked, *floors))),
    ]
    targets = [(code(name), load_target(name).description + ".") for name in target_names()]
    parts = [
        "## Names",
        table(["setting", "names"], rows),
        f"Always computed, without labels: {_listed(PAIR_METRICS)}. They compare the\n"
        "quantized model's outputs with the float model's. If there are several outputs, the first has\n"
        "the plain name, and the others are called `sqnr_db[name]`.",
        table(["target", "description"], targets),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


def _presets() -> str:
    parts = [
        "## Presets\n",
        "Each is a file in [`configs/presets`](../configs/presets). Whole recipes to copy, with the reason\n"
        "for each setting, are in [`configs/recipes`](../configs/README.md#recipes).\n",
        "<!-- folder: empty -->\n",
    ]
    for name in preset_names():
        text = (PRESETS / f"{name}.toml").read_text(encoding="utf-8").strip()
        parts.append(f"`{name}`:\n\n{_recipe(name, text)}")
    return "\n".join(parts)


def _defaults() -> str:
    text = recipe_to_toml(Recipe(), Path()).strip()
    return (
        "## All defaults\n\nThe defaults as in `recipe.toml`, without settings that have no default.\n\n"
        f"{_recipe('defaults', text)}"
    )


def _recipe(name: str, text: str) -> str:
    """Return a recipe as a block that the tests decode."""
    return f"<!-- file: {name}.ptq.toml -->\n```toml\n{text}\n```\n"
