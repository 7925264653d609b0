"""The files of a report: for programs, for a pull request, for a CI server, and as a page."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from ptq_cli.core.errors import PtqError
from ptq_cli.pipeline.evaluation.written.page_evidence import Material
from ptq_cli.pipeline.evaluation.written.run_page import earlier_analysis, make_page
from ptq_cli.pipeline.exporting.file_metadata import quantizer_line
from ptq_cli.pipeline.exporting.placing.placement import place
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.qdq.metadata import QUANTIZERS
from ptq_cli.recipe.encode import recipe_to_toml
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.document.details import Changes, Details, details_to_json
from ptq_cli.report.document.report_document import Report, report_to_json
from ptq_cli.report.text.junit import report_to_junit
from ptq_cli.report.text.markdown import report_to_markdown

PLAIN = "the target's own quantizers"


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
    material = cache(material)
    notes = tuple(not_reproduced(origin, material()))
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


def not_reproduced(origin: Mapping[str, str], material: Material) -> Iterator[str]:
    """Say if the model was exported with other quantizers than the recipe has.

    Args:
        origin: the quantized model's metadata.
        material: what the recipe is applied to.
    """
    was, now = origin.get(QUANTIZERS, PLAIN), _quantizers(material)
    if now is not None and was != now:
        yield f"The model was exported with {was}, the recipe has {now}."


def _quantizers(material: Material) -> str | None:
    try:
        placement = place(
            material.float_model, material.plan, material.target, material.recipe, material.calibration
        )
    except PtqError:  # The page says why, in place of its histograms.
        return None
    if placement.is_plain:
        return PLAIN
    return quantizer_line(placement.weight_counts, placement.activation_counts)
