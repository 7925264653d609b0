"""The files of a report: for programs, for a pull request, for a CI server, and as a page."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ptq_cli.amax.decide import AUTO
from ptq_cli.pipeline.evaluation.page_evidence import Material
from ptq_cli.pipeline.evaluation.run_page import earlier_analysis, make_page
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.qdq.metadata import AMAX_METHOD, AMAX_PERCENTILE, WEIGHT_AMAX
from ptq_cli.recipe.encode import recipe_to_toml
from ptq_cli.recipe.recipe_layers import file_layer, merge_layers
from ptq_cli.recipe.schema import AmaxSettings, Recipe
from ptq_cli.report.document.details import Changes, Details, details_to_json
from ptq_cli.report.document.report_document import Report, report_to_json
from ptq_cli.report.text.junit import report_to_junit
from ptq_cli.report.text.markdown import report_to_markdown


def report_files(
    report: Report,
    recipe: Recipe,
    material: Callable[[], Material],
    origin: Mapping[str, str],
    changes: Changes | None,
    run: RunDirectory,
) -> dict[Path, bytes]:
    """Return the content of each file that tells of an evaluation.

    Args:
        report: what was measured.
        recipe: the settings behind it.
        material: hands over both models and the statistics, for the page.
        origin: the quantized model's metadata.
        changes: the samples that changed their class; None if the output is not one of classes.
        run: names the files.
    """
    notes = tuple(not_reproduced(recipe.amax, origin))
    details = Details(report.created, report.model.quantized_model.sha256, notes, changes)
    settings = recipe_to_toml(recipe, run.path)
    page, _ = make_page(report, details, settings, material, run, earlier_analysis(run))
    return {
        run.report_json: report_to_json(report).encode(),
        run.report_markdown: report_to_markdown(report).encode(),
        run.junit: report_to_junit(report).encode(),
        run.report_html: page,
        run.report_recipe: settings.encode(),
        run.details: details_to_json(details).encode(),
    }


def with_exported(recipe: Recipe, run: RunDirectory) -> Recipe:
    """Return the recipe that the run's model was exported with, and of the evaluation what it decides itself.

    ``ptq export`` may have been given flags that the evaluation was not; its recipe holds them.
    """
    if not run.recipe.is_file():
        return recipe
    return replace(
        merge_layers([file_layer(run.recipe)]),
        model=recipe.model,
        evaluation=recipe.evaluation,
        metric=recipe.metric,
        gate=recipe.gate,
        runtime=recipe.runtime,
    )


def not_reproduced(amax: AmaxSettings, origin: Mapping[str, str]) -> Iterator[str]:
    """Say where the model was exported with other settings than the recipe has.

    Args:
        amax: the recipe's.
        origin: the quantized model's metadata.
    """
    method = amax.method
    settings = {AMAX_METHOD: method, WEIGHT_AMAX: amax.weight_method}
    if origin.get(AMAX_METHOD) == "percentile":
        settings[AMAX_PERCENTILE] = repr(amax.percentile)
    if method == AUTO:  # which means what the calibration allows
        del settings[AMAX_METHOD]
    for key, value in settings.items():
        if origin.get(key) != value:
            what = key.removeprefix("ptq.")
            yield f"The model was exported with {what} = {origin.get(key)}, the recipe has {value}."
