"""From what the user typed to one resolved recipe, checked before any work begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptq_cli.amax.decide import check_amax_settings
from ptq_cli.collectors.registry import make_collector
from ptq_cli.plan.target import load_target
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.flags import settings_to_table
from ptq_cli.recipe.layers import (
    DEFAULT_PRESET,
    FOLDER_RECIPE,
    Layer,
    file_layer,
    merge_layers,
    preset_layer,
    table_layer,
)
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.gate import check_limits
from ptq_cli.report.metrics.registry import requested_label_metrics

COMMAND_LINE = "the command line"


@dataclass(frozen=True)
class Request:
    """What the user asked of a verb.

    Attributes:
        settings: by flag name.
        model: the model's file, or None to leave it to the recipe.
        recipe_file: ``--recipe``.
        preset: ``--preset``.
        folder: where ``ptq.toml`` is looked for, and where relative paths of flags start.
    """

    settings: Mapping[str, Any]
    model: Path | None = None
    recipe_file: Path | None = None
    preset: str | None = None
    folder: Path = Path()

    def flags(self) -> Layer:
        """Return the layer of the flags, with locations resolved."""
        table = settings_to_table(self.settings)
        if self.model is not None:
            table.setdefault("model", {})["path"] = str(self.model)
        return table_layer(table, self.folder, COMMAND_LINE)


def resolve(request: Request, earlier: Layer | None = None) -> Recipe:
    """Return the recipe of a request.

    Args:
        request: what the user asked for.
        earlier: what the command line of an earlier stage of the same run set; the flags override it.

    Raises:
        InputFileError: ``--recipe`` names no file.
        RecipeSyntaxError: a recipe is no TOML.
        RecipeKeyError: a recipe has an unknown key.
        RecipeValueError: a value has the wrong type or is out of range.
        UnknownNameError: a method, target, metric or preset does not exist.
        GateError: a limit makes no sense.
    """
    layers = [preset_layer(request.preset or DEFAULT_PRESET)]
    folder_recipe = request.folder / FOLDER_RECIPE
    if folder_recipe.is_file():
        layers.append(file_layer(folder_recipe, FOLDER_RECIPE))
    if request.recipe_file is not None:
        layers.append(file_layer(request.recipe_file))
    if earlier is not None:
        layers.append(earlier)
    layers.append(request.flags())
    return _check_names(check_recipe(merge_layers(layers)))


def _check_names(recipe: Recipe) -> Recipe:
    make_collector(recipe.calibration.method)
    check_amax_settings(recipe.amax)
    load_target(recipe.quantization.target)
    requested_label_metrics(recipe.evaluation.metrics)
    check_limits(recipe.gate)
    # A limit on a further output is written sqnr_db[name]; which outputs there are, only the model knows.
    requested_label_metrics([name.partition("[")[0] for name in (*recipe.gate.max_drop, *recipe.gate.min)])
    return recipe
