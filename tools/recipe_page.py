"""``docs/recipe.md``: every setting, as it is declared."""

import inspect
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

from ptq_cli.amax.method_registry import AUTO_METHOD, METHODS
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
from tools.tables import code, listed, table

INTRODUCTION = """\
# Recipe

A recipe is a TOML file with settings. Any command takes one as `--set KEY=VALUE`, Python as a keyword
argument (`batch_size`), and `ptq recipe keys` lists them. [`ptq recipe`](commands.md#ptq-recipe) also writes
a commented `ptq.toml` for a model, checks recipes, and writes [their schema](recipe.schema.json) for editors;
[`configs/recipes`](../configs/README.md#recipes) has whole ones to copy.

Layers of settings, each of which overrides those before it, key by key:

1. the preset (`--preset`, default `{preset}`; [all presets](../configs/README.md#presets))
2. `./ptq.toml`
3. `--recipe FILE`
4. for `ptq export` and `ptq evaluate`: the flags of the calibration that its statistics depend on
5. flags and `--set`; both may give a key only if they agree

How values are combined and written:

- A list replaces the earlier list, and so does a section `[weights]` or `[activations]` that names a
  quantizer. [Overrides](#override) of flags follow those of recipes.
- After `--set`, texts need no quotes, a list may be `1,2,3`, and an entry of a table has its name behind the
  key: `--set gate.max_drop.top1=1%`. `run.restart` and `run.evaluate` hold for one
  command, and no recipe has them.
- Paths in a recipe are relative to its folder, in a flag to the current one. Code that a recipe names runs if
  you named the recipe with `--recipe`, or [trust the code](../SECURITY.md#code-that-a-recipe-names).
- The resolved recipe is `recipe.toml` in the run directory. `ptq export` and `ptq evaluate` read it if there
  is neither `./ptq.toml` nor `--recipe`; a preset that is named overrides it. Where nothing names data, they
  use the run's, and say so ([0022](decisions/0022-what-a-run-remembers.md)).

What has no default below is not set.
"""
# What follows the table of a section.
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
# Singular and plural of each type.
WORDS = {
    str: ("string", "strings"),
    int: ("integer", "integers"),
    float: ("number", "numbers"),
    bool: ("boolean", "booleans"),
    Any: ("value", "values"),
}


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
    lines = listed(rows)
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
        ("`amax.method`, `override.amax`", _listed((AUTO_METHOD, *METHODS))),
        ("`amax.weight_method`, `override.weight_amax`", _listed(METHODS)),
        ("`evaluation.metrics`", f"{_listed(asked)}, or [code](metrics.md)"),
        (
            "`gate.max_drop`",
            f"those up to {code(list(LABEL_METRICS)[-1])}, or your own metric, if both models have it",
        ),
        ("`gate.max_ratio`", f"{_listed(errors)}, or your own metric, if it is better when lower"),
        ("`gate.max_regression`", f"all of them, and those always computed: {_listed(PAIR_METRICS)}"),
        ("`gate.min`", f"the same without {_listed(ceilings)}"),
        ("`quantization.target`", f"{_listed(target_names())}, or [a file](targets.md)"),
    ]
    parts = [
        "## Names",
        table(["setting", "names"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))
