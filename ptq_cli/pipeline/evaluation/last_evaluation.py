"""The data of a run's last evaluation, for commands that are given none."""

from pathlib import Path

from ptq_cli.pipeline.run.resolve import Request
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.recipe_layers import file_layer, merge_layers
from ptq_cli.recipe.sections.evaluation_sections import EvaluationSettings


def last_evaluation(request: Request, run: RunDirectory, model: Path | None) -> EvaluationSettings | None:
    """Return the settings of a run's last evaluation; None if its data are not the ones that are meant.

    A flag of ``ptq evaluate`` holds for that command alone, but what is asked next about the same models is
    most likely about the same samples. ``report.toml`` has them.

    Args:
        request: may name evaluation data itself, by a flag or in ``--recipe``.
        run: the run directory.
        model: the quantized model that is asked about; None for the run's own. The report of one of several
            models is in a folder of its name.

    Edge case:
        None without an evaluation, or if it had no data, as an edited file may not.

    Raises:
        PtqError: ``--recipe`` or ``report.toml`` cannot be read.
    """
    if "eval_data" in request.settings or _names_data(request.recipe_file):
        return None
    folders = (run.of_model(model), run) if model is not None else (run,)
    found = next((own.report_recipe for own in folders if own.report_recipe.is_file()), None)
    if found is None:
        return None
    settings = merge_layers([file_layer(found)]).evaluation
    return settings if settings.data is not None else None


def _names_data(recipe: Path | None) -> bool:
    return recipe is not None and "data" in file_layer(recipe).table.get("evaluation", {})
