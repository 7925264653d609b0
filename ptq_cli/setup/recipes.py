"""``recipe init``, ``recipe check`` and the JSON Schema of a recipe, by which editors complete its keys."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

from ptq_cli.amax.method_registry import AUTO_METHOD, METHODS
from ptq_cli.calibdata.image_decoding import CHANNELS as IMAGE_CHANNELS
from ptq_cli.calibdata.image_decoding import LAYOUTS
from ptq_cli.collectors.collector_registry import COLLECTORS
from ptq_cli.core.documents import HIDDEN, docstring
from ptq_cli.core.entry_points import is_entry_point
from ptq_cli.core.errors import EmptyDataError, InputFileError, OutputFileError
from ptq_cli.core.files import write_text
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.core.words import escaped, visible
from ptq_cli.evaluation.metrics.metric_registry import LABEL_METRICS, REQUESTED_COMPARISONS
from ptq_cli.models.loading.source import ModelSource
from ptq_cli.plan.target.target_file import known_targets, target_names
from ptq_cli.recipe.declaration import REQUIRED, Setting
from ptq_cli.recipe.locations import map_locations, relative_location
from ptq_cli.recipe.recipe_layers import DEFAULT_PRESET, file_layer, merge_layers, preset_layer
from ptq_cli.recipe.recovery_rungs import needs_ranges
from ptq_cli.recipe.schema import SETTINGS, Recipe, sections
from ptq_cli.setup.float_model import open_source
from ptq_cli.setup.resolve import Request, resolve

# The newest that editors of TOML read.
_DRAFT = "http://json-schema.org/draft-07/schema#"
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}
LINK = r"\[([\w.]+)\]\([\w.]+\)"

# What a setting may be the name of, and the rooms that know those names.
_NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "amax method": lambda: (AUTO_METHOD, *METHODS),
    "amax method of weights": lambda: METHODS,
    "collector": lambda: COLLECTORS,
    "image mode": lambda: IMAGE_CHANNELS,
    "layout": lambda: LAYOUTS,
    "metric": lambda: (*LABEL_METRICS, *REQUESTED_COMPARISONS),
    "target": target_names,
}


def names_of(key: str) -> tuple[str, ...]:
    """The texts that a setting, or an entry of its list, may be; none if it may be any.

    Example:
        >>> names_of("export.prefer"), names_of("amax.weight_method"), names_of("text.label_column")
        (('auto', 'accuracy', 'latency', 'size'), ('max', 'percentile', 'entropy', 'mse'), ())
    """
    declared = SETTINGS[key]
    return tuple(_NAMES[declared.names]()) if declared.names else tuple(declared.choices)


def recipe_schema() -> str:
    """The schema as JSON, with a newline at the end."""
    schema = {
        "$schema": _DRAFT,
        "title": "A recipe of ptq",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"type": "array", "items": _section(name, kind)} if several else _section(name, kind)
            for name, kind, several in sections()
        },
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _section(name: str, kind: Any) -> dict[str, Any]:
    found = [item for key, item in SETTINGS.items() if key.partition(".")[0] == name]
    required = [item.key.partition(".")[2] for item in found if item.default is REQUIRED]
    return {
        "type": "object",
        "description": re.sub(LINK, r"\1", docstring(kind).splitlines()[0]),
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "properties": {item.key.partition(".")[2]: _schema(item) for item in found},
    }


def _schema(declared: Setting) -> dict[str, Any]:
    return {
        "description": declared.sentence(),
        **_values(declared.type, declared),
        **({} if declared.default in (None, REQUIRED) else {"default": declared.default}),
    }


def _values(kind: Any, declared: Setting) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):  # The settings of a layer have the keys of the section for all layers.
        return {**_section(declared.key.partition(".")[2], kind), "description": declared.help}
    if origin is list:
        return {"type": "array", "items": _values(arguments[0], declared)}
    if origin is dict:
        values = {} if arguments[1] is Any else _values(arguments[1], declared)
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if origin is UnionType:
        return {"anyOf": [_values(member, declared) for member in arguments]}
    if names := names_of(declared.key):
        known = {"enum": list(names)}
        return {"anyOf": [known, {"type": "string"}]} if declared.is_open else known
    return {"type": _SCALARS[kind], **_limits(kind, declared)}


def _limits(kind: Any, declared: Setting) -> dict[str, Any]:
    if kind not in (int, float):
        return {}
    limits = {"minimum": declared.low, "maximum": declared.high, "exclusiveMinimum": declared.above}
    return {
        name: limit for name, limit in limits.items() if limit is not None and limit != sys.float_info.max
    }


@dataclass(frozen=True, kw_only=True)
class CheckedRecipe:
    """A recipe that is correct."""

    file: Annotated[Path, "The recipe."]
    settings: Annotated[dict[str, Any], "Each that it sets, with the section in front, and its value."]
    missing: Annotated[tuple[Path, ...], "Files and folders that it names and that are not there."]
    command: Annotated[str, "What runs it, with what it leaves to the command line."]


@dataclass(frozen=True)
class CheckedRecipes:
    """What ``ptq recipe check`` prints."""

    recipes: Annotated[tuple[CheckedRecipe, ...], "Each recipe that was checked."]


def check_recipe_file(path: Path) -> CheckedRecipe:
    """Check a recipe as a command would that reads it, and whether what it names is there."""
    if not path.is_file():
        raise InputFileError(
            f"there is no recipe '{path}'", hint="ptq recipe init MODEL writes one for a model"
        )
    table = file_layer(path).table
    recipe = resolve(Request(settings={}, recipe_file=path, folder=path.parent)).recipe
    unset = unset_data(recipe)
    if recipe.model.path is not None:  # A recipe without a model is for several, and each has its own data.
        for key, flag in unset.items():
            raise EmptyDataError(
                f"'{key}' is not set in '{path}', and its model cannot be quantized without it",
                hint=f"set it, or leave out 'model.path', too, and pass both: ptq quantize MODEL {flag} PATH",
            )
    words = [] if recipe.model.path is not None else ["MODEL", *(f"{flag} PATH" for flag in unset.values())]
    command = " ".join(["ptq quantize", *words])
    return CheckedRecipe(file=path, settings=_flat(table), missing=_missing(table), command=command)


def unset_data(recipe: Recipe) -> dict[str, str]:
    """The keys of data that ``ptq quantize`` needs and a recipe does not set, with their flags.

    Example:
        >>> from ptq_cli.recipe.sections import GateSettings
        >>> unset_data(Recipe()), unset_data(Recipe(gate=GateSettings(max_size="1MB")))
        ({'calibration.data': '--data'}, {'calibration.data': '--data', 'evaluation.data': '--eval-data'})
    """
    unset = {}
    if recipe.calibration.data is None and needs_ranges(recipe):
        unset["calibration.data"] = "--data"
    if recipe.evaluation.data is None and recipe.gate.has_limits:
        unset["evaluation.data"] = "--eval-data"
    return unset


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and not prefix:
            found.update(_flat(value, f"{name}."))
        else:
            found[name] = value
    return found


def _missing(table: dict[str, Any]) -> tuple[Path, ...]:
    found = []

    def look(text: str) -> str:
        is_code = is_entry_point(text) and not Path(text).exists()
        path = Path(text.rpartition(":")[0] if is_code else text)
        if not path.exists() and (not is_code or path.suffix == ".py"):
            found.append(path)
        return text

    map_locations(table, look)
    return tuple(dict.fromkeys(found))


IMAGE_RANK = 4
_CHANNELS = {1: "L", 3: "RGB"}  # of images, with their mode
LEAST_SIDE = 8  # Of an image: a smaller tensor with three channels is something else

# Files of arrays: what is said about files of images or of text does not hold for them.
_ARRAYS = (".npz", ".npy")

TOKEN_RANK = 2
# Where data may be, by what the model's inputs look like.
FORMS = {
    "images": "A folder of images or of npz files, an npz file, tar shards, Parquet, or file.py:callable.",
    "tokens": "A .txt or .jsonl file of texts, an npz file, Parquet, or file.py:callable.",
    "others": "An npz file, a folder of npz files, tar shards, Parquet, or file.py:callable.",
}


@dataclass(frozen=True)
class NewRecipe:
    """A recipe that was written."""

    output: Annotated[Path, "Its file."]
    text: Annotated[str, HIDDEN]
    questions: Annotated[int, "How many questions it leaves to the user."]
    unset: Annotated[tuple[str, ...], "The keys of data that a quantization needs and it does not set."]


def run_recipe_init(request: Request, output: Path, *, force: bool = False) -> NewRecipe:
    """Write a commented recipe for a model."""
    if output.exists() and not force:
        raise OutputFileError(
            f"'{output}' is there already", hint="pass another file with --output, or replace it with --force"
        )
    recipe = merge_layers([preset_layer(DEFAULT_PRESET), request.flags()])
    source = open_source(recipe.model)
    text = _text(recipe, source, output.absolute().parent)
    write_text(output, text)
    return NewRecipe(output, text, text.count("?\n"), tuple(unset_data(recipe)))


def _text(recipe: Recipe, source: ModelSource, folder: Path) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    specs = source.example_specs
    images = [(spec.name, *found) for spec in specs if (found := image_of(spec)) is not None]
    tokens = [spec.name for spec in specs if are_tokens(spec)]
    for_files = not (recipe.calibration.data or "").endswith(_ARRAYS)
    environment = Environment(  # noqa: S701 - TOML, in which nothing of HTML has a meaning
        loader=PackageLoader("ptq_cli.setup", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # A name from the model that ends a comment could set what it likes.
        finalize=lambda value: visible(str(value)).replace("\n", "\ufffd"),
    )
    environment.filters["in_quotes"] = json.dumps
    environment.filters["quoted"] = lambda location: escaped(
        json.dumps(relative_location(location, folder), ensure_ascii=False)
    )
    return environment.get_template("new_recipe.toml.jinja").render(
        recipe=recipe,
        model=source.file.path.name,
        names=source.input_names,
        known={spec.name: spec for spec in specs},
        scalars=", ".join(f"{json.dumps(spec.name)} = 0" for spec in specs if not spec.shape),
        image=images[0] if images and for_files else None,
        tokens=tokens[0] if tokens and for_files else "",
        forms=FORMS["images" if images else "tokens" if tokens else "others"],
        targets=known_targets(),
    )


def are_tokens(spec: TensorSpec) -> bool:
    """Tell whether an input looks like the tokens of texts.

    Example:
        >>> import numpy as np
        >>> are_tokens(TensorSpec("input_ids", np.dtype("i8"), (None, None)))
        True
        >>> are_tokens(TensorSpec("user", np.dtype("i8"), (None, 1)))
        False
    """
    named = any(word in spec.name.lower() for word in ("ids", "token"))
    return named and len(spec.shape) == TOKEN_RANK and spec.dtype.kind == "i"


def image_of(spec: TensorSpec) -> tuple[str, str, tuple[int | None, int | None]] | None:
    """The layout, the mode and the sides of images, if an input looks like them.

    Example:
        >>> import numpy as np
        >>> image_of(TensorSpec("x", np.dtype("f4"), (None, 3, 320, 640)))
        ('NCHW', 'RGB', (320, 640))
        >>> image_of(TensorSpec("x", np.dtype("f4"), (1, None, None, 1)))
        ('NHWC', 'L', (None, None))
        >>> image_of(TensorSpec("x", np.dtype("i8"), (1, 3, 224, 224))) is None
        True
    """
    if len(spec.shape) != IMAGE_RANK or spec.dtype.kind not in "fu":
        return None
    _, first, middle, last = spec.shape
    for layout, channels, sides in (("NCHW", first, (middle, last)), ("NHWC", last, (first, middle))):
        if channels in _CHANNELS and all(side is None or side >= LEAST_SIDE for side in sides):
            return layout, _CHANNELS[channels], sides
    return None
