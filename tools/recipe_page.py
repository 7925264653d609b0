"""``docs/recipe.md``: every setting, as it is declared."""

import inspect
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

from ptq_cli.amax.method_registry import AUTO, METHODS
from ptq_cli.collectors.collector_registry import COLLECTORS
from ptq_cli.evaluation.metrics.metric_registry import (
    LABEL_METRICS,
    PAIR_METRICS,
    REQUESTED_COMPARISONS,
    make_label_metric,
)
from ptq_cli.plan.target.target_file import target_names
from ptq_cli.recipe.declaration import REQUIRED, Setting
from ptq_cli.recipe.quantizer_families import FAMILIES
from ptq_cli.recipe.recipe_layers import DEFAULT_PRESET
from ptq_cli.recipe.schema import SETTINGS, sections
from tools.tables import code, table

INTRODUCTION = """\
# Recipe

A recipe is a TOML file with settings. `ptq recipe keys` lists them; a command takes any of them as `--set
KEY=VALUE`, and the Python API as keyword arguments (`batch_size`). Each layer of settings overrides those
before it, key by key; a list replaces the whole earlier list, and [overrides](#override) of flags follow
those of recipes:

1. the preset (`--preset`, default `{preset}`; [all presets](../configs/README.md#presets))
2. `./ptq.toml`, if the current folder has one
3. `--recipe FILE`
4. for `ptq export` and `ptq evaluate`: the flags of the calibration that its statistics depend on
5. the flags and `--set`; both may give a key only if they agree

After `--set`, a text is written as it is, other values as in TOML, and a list also as `1,2,3`:
`--set image.mean=0.5,0.4,0.3`. An entry of a table has its name behind the key: `--set
gate.max_drop.top1=1%`. Of two values for a key, the last one counts. Keys of `[run]` hold for one command,
and no recipe has them: `run.restart`, `run.evaluate`, `run.thumbnails`.

A section `[weights]` or `[activations]` that names a quantizer replaces the section of all earlier layers. A
preset that is named on the command line overrides `recipe.toml` in the run directory.

Code that a recipe names runs if you named the recipe, with `--recipe`, or trust the code: `--trust-code`
[is remembered](../SECURITY.md#code-that-a-recipe-names).

An unknown key is an error that names the nearest known one. A path in a recipe is relative to the recipe's
folder, a path in a flag to the current folder. What has no default below is not set.

`ptq calibrate`, `ptq export` and `ptq quantize` write the resolved recipe to `recipe.toml` in the run
directory. `ptq export` and `ptq evaluate` read it if there is neither `./ptq.toml` nor `--recipe`; otherwise,
if neither a recipe nor a flag names data, they use the data of the run directory and say so
([0022](decisions/0022-what-a-run-remembers.md)).

[`ptq recipe`](commands.md#ptq-recipe) writes a commented `ptq.toml` for a model, checks recipes, and writes
[their JSON Schema](recipe.schema.json) for editors. Whole recipes to copy are in
[`configs/recipes`](../configs/README.md#recipes).
"""
BELOW = {
    "weights": "\nThe quantizers' formulas are in [quantizers.md](quantizers.md).\n",
    "activations": "\n"
    + "\n".join(
        f"- `{family.name}` cannot quantize activations: {family.activations}."
        for family in FAMILIES.values()
        if not family.takes_activations
    )
    + "\n",
}
"""What follows the table of a section."""
WORDS = {
    str: ("string", "strings"),
    int: ("integer", "integers"),
    float: ("number", "numbers"),
    bool: ("boolean", "booleans"),
    Any: ("value", "values"),
}
"""Singular and plural of each type."""


def recipe_page() -> str:
    """Return the page."""
    parts = [INTRODUCTION.format(preset=DEFAULT_PRESET), *(_section(*item) for item in sections())]
    return "\n".join([*parts, _names()])


def _section(name: str, kind: Any, several: bool) -> str:
    summary = (inspect.getdoc(kind) or "").splitlines()[0]
    found = [item for key, item in SETTINGS.items() if key.partition(".")[0] == name]
    families = _families(name)
    rows = [(*_setting(item), families.get(item.key.partition(".")[2]) or item.sentence()) for item in found]
    # A list of tables is written as one [[name]] per table.
    title = f"[[{name}]]" if several else name
    lines = table(["setting", "type, default", "meaning"], rows)
    return f"## {title}\n\n{summary}\n\n{lines}\n{BELOW.get(name, '')}"


def _setting(declared: Setting) -> tuple[str, str]:
    kind = "path or entry point" if declared.is_location else _words(declared.type)
    default = declared.default
    if default is REQUIRED:
        return code(declared.key.partition(".")[2]), f"{kind}, required"
    # Booleans, strings and lists of numbers look the same in JSON and TOML.
    shown = "" if default in (None, "", [], {}) else f", {code(json.dumps(default))}"
    return code(declared.key.partition(".")[2]), kind + shown


def _families(section: str) -> dict[str, str]:
    """Return what quantizers say of their parameters in a section, each sentence once."""
    said: dict[str, dict[str, dict[str, object]]] = {}
    for family in FAMILIES.values():
        parameters = {"weights": family.weight_parameters, "activations": family.activation_parameters}
        for item in parameters.get(section) or ():
            said.setdefault(item.key, {}).setdefault(item.sentence(), {})[code(family.name)] = item.default
    return {
        key: " ".join(f"{', '.join(found)}: {text}{_defaults(found)}" for text, found in texts.items())
        for key, texts in said.items()
    }


def _defaults(found: dict[str, object]) -> str:
    """Return the default of a parameter, or those of quantizers that have different ones."""
    shown = {name: code(json.dumps(value)) for name, value in found.items() if value is not None}
    if len(set(shown.values())) < 2:
        return f" Default {next(iter(shown.values()))}." if shown else ""
    return f" Default {', '.join(f'{value} ({name})' for name, value in shown.items())}."


def _words(hint: Any, *, plural: bool = False) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return " or ".join(_words(item, plural=plural) for item in arguments)
    if origin is list:
        return f"{'lists' if plural else 'list'} of {_words(arguments[0], plural=True)}"
    if origin is dict:
        return f"table of {_words(arguments[1], plural=True)}"
    if is_dataclass(hint):
        return "table"
    return WORDS[hint][plural]


def _names() -> str:
    asked = (*LABEL_METRICS, *REQUESTED_COMPARISONS)
    ceilings = [name for name, metric in PAIR_METRICS.items() if not metric.higher_is_better]
    errors = [name for name in LABEL_METRICS if not make_label_metric(name, {}).higher_is_better]
    rows = [
        ("`calibration.method`", _listed(COLLECTORS)),
        ("`amax.method`, `override.amax`", _listed((AUTO, *METHODS))),
        ("`amax.weight_method`, `override.weight_amax`", _listed(METHODS)),
        ("`evaluation.metrics`", f"{_listed(asked)}, or code; see [metrics.md](metrics.md)"),
        (
            "`gate.max_drop`",
            f"those up to {code(list(LABEL_METRICS)[-1])}, or your own metric, if both models have it",
        ),
        ("`gate.max_ratio`", f"{_listed(errors)}, or your own metric, if it is better when lower"),
        ("`gate.max_regression`", f"all of them, and those always computed: {_listed(PAIR_METRICS)}"),
        ("`gate.min`", f"the same without {_listed(ceilings)}"),
        ("`quantization.target`", f"{_listed(target_names())}; see [targets.md](targets.md)"),
    ]
    parts = [
        "## Names",
        table(["setting", "names"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))
