"""The recipe that a run's model was exported with, for an evaluation that was not given its flags."""

from dataclasses import replace

from ptq_cli.pipeline.run_directory import RunDirectory
from ptq_cli.recipe.recipe_layers import file_layer, merge_layers
from ptq_cli.recipe.schema import Recipe


def with_exported(recipe: Recipe, run: RunDirectory) -> Recipe:
    """Return the recipe that the run's model was exported with, and of the evaluation what it decides itself.

    ``ptq export`` may have been given flags that the evaluation was not; its recipe holds them.
    """
    if not run.recipe.is_file():
        return recipe
    exported = merge_layers([file_layer(run.recipe)])
    return replace(
        exported,
        export=replace(exported.export, serve_batch=recipe.export.serve_batch),
        model=recipe.model,
        evaluation=recipe.evaluation,
        metric=recipe.metric,
        gate=recipe.gate,
        runtime=recipe.runtime,
    )
