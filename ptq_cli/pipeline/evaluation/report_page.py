"""``report.html``: from what a run holds in memory, or again from its directory."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import onnx_ir as ir

from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.core.documents import read_document, to_json
from ptq_cli.core.errors import InputFileError, PtqError, StaleCalibrationError
from ptq_cli.core.files import write_together
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.device_document import DeviceAnswers
from ptq_cli.evaluation.document.report_document import Details, ModelEntry, Report
from ptq_cli.latency.measure_profile import operators_digest
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.evaluation.page_evidence import Material, gather
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.planner import make_plan
from ptq_cli.recipe.recipe_layers import file_layer, merge_layers
from ptq_cli.report.html.fact_rows import Evidence, Origin
from ptq_cli.report.html.page_view import NOT_ANALYZED, PageInput, render_page
from ptq_cli.report.text.markdown import devices_to_markdown, report_to_markdown
from ptq_cli.setup.resolve import named_target
from ptq_cli.setup.run_directory import RunDirectory

Found = TypeVar("Found")

STALE_ANALYSIS = (
    "The run's analysis.json is for a different quantized model. This command analyzes this one and writes "
    "this page again:"
)
STALE_DEVICES = "The answers of devices are to another quantized model, and are not shown."


@dataclass(frozen=True)
class PageResult:
    """What ``ptq report`` wrote."""

    page: Annotated[Path, "The file of the page."]
    notes: Annotated[tuple[str, ...], "What the page lacks, and why."]


@dataclass(frozen=True)
class Additions:
    """What other commands than ``evaluate`` found, which a report's page shows if it is of the same model."""

    analysis: Analysis | None
    devices: DeviceAnswers | None

    def devices_of(self, report: Report) -> DeviceAnswers | None:
        """The answers of devices to a report's model; None without any."""
        if self.devices is None or self.devices.manifest.source_sha256 != report.model.quantized_model.sha256:
            return None
        return self.devices


def earlier(run: RunDirectory) -> Additions:
    """Read the analysis and the answers of devices in a run; what cannot be read is left out."""
    return Additions(
        _optional(run.analysis, partial(read_document, Analysis)),
        _optional(run.devices, partial(read_document, DeviceAnswers)),
    )


def make_page(
    report: Report,
    details: Details | None,
    recipe: str,
    material: Callable[[], Material],
    run: RunDirectory,
    others: Additions,
) -> tuple[bytes, tuple[str, ...]]:
    """The page, and what it could not show.

    What is missing or does not belong to the report is a note on the page and no error: a report without
    histograms is still a report.
    """
    evidence, profile = Evidence(_origin(details, recipe, run)), None
    try:
        models = material()
        profile = _profile(models.float_model, run)
        layers, tensors, notes = gather(models)
        evidence = replace(evidence, layers=layers, tensors=tensors, notes=notes)
    except PtqError as error:
        evidence = replace(evidence, notes=(f"No histograms: {error.message}.",))
    analysis, devices = others.analysis, others.devices_of(report)
    fits = analysis is not None and _is_of(report, analysis)
    stale = (STALE_DEVICES,) if others.devices is not None and devices is None else ()
    found = PageInput(
        report=report,
        evidence=evidence,
        changes=details.changes if details is not None else None,
        analysis=analysis if fits else None,
        analysis_note=NOT_ANALYZED if analysis is None else STALE_ANALYSIS,
        profile=profile,
        devices=devices,
    )
    return render_page(found).encode(), (*evidence.notes, *evidence.origin.notes, *stale)


def run_page(run: RunDirectory) -> PageResult:
    """Make the page again from a run directory: no model is run."""
    report = read_document(Report, run.require_stage(run.report_json, "ptq evaluate"))
    content, notes = _made_again(report, run, earlier(run))
    write_together({run.report_html: content})
    return PageResult(run.report_html, notes)


def page_with(analysis: Analysis, run: RunDirectory) -> dict[Path, bytes]:
    """The page of a run's report with a new analysis, by its path; nothing if no report fits."""
    report = _optional(run.report_json, partial(read_document, Report))
    if report is None or not _is_of(report, analysis):
        return {}
    return {run.report_html: _made_again(report, run, replace(earlier(run), analysis=analysis))[0]}


def page_with_devices(found: DeviceAnswers, run: RunDirectory) -> dict[Path, bytes]:
    """The files that show what devices gave, by path; nothing if no report of the run fits.

    Several models of a run have reports in folders of their own, named for their files.
    """
    for own in (run, run.of_model(Path(found.manifest.source))):
        report = _optional(own.report_json, partial(read_document, Report))
        others = replace(earlier(own), devices=found)
        if report is not None and others.devices_of(report) is not None:
            return {
                own.devices: to_json(found).encode(),
                own.report_markdown: report_markdown(report, found).encode(),
                own.report_html: _made_again(report, own, others)[0],
            }
    return {}


def report_markdown(report: Report, devices: DeviceAnswers | None) -> str:
    """Return ``report.md``."""
    return report_to_markdown(report) + (f"\n{devices_to_markdown(devices)}" if devices is not None else "")


def _profile(float_model: ir.Model, run: RunDirectory) -> MachineProfile | None:
    """The times in a run's directory; None without any, or if they are of another model."""
    found = _optional(_at_hand(run, run.profile.name), partial(read_document, MachineProfile))
    return found if found is not None and found.model == operators_digest(float_model) else None


def read_material(report: Report, run: RunDirectory) -> Material:
    """Read the models and the calibration behind a page from the run directory again."""
    recipe = merge_layers([file_layer(run.require_stage(run.report_recipe, "ptq evaluate"))])
    calibration = load_calibration(run.require_stage(_at_hand(run, run.calibration.name), "ptq calibrate"))
    if calibration.provenance.model != report.model.float_model.sha256:
        raise StaleCalibrationError(
            "the run's calibration is for a different model than the report",
            hint="run ptq calibrate and ptq evaluate again",
        )
    models = report.model.float_model, report.model.quantized_model
    contents = [_read_model(_at_hand(run, model.name), model) for model in models]
    float_model, quantized_model = (content.load() for content in contents)
    target = named_target(recipe.quantization)
    return Material(
        float_model=float_model,
        quantized_model=quantized_model,
        calibration=calibration,
        plan=make_plan(float_model, target),
        target=target,
        recipe=tensor_recipe(recipe),
    )


def _at_hand(run: RunDirectory, name: str) -> Path:
    """A file of a run; reports of several models lie in folders of the run that they share."""
    above = run.path.parent / name
    return above if above.is_file() and not (run.path / name).is_file() else run.path / name


def _read_model(path: Path, model: ModelEntry) -> StoredModel:
    found = read_model(path) if path.is_file() else StoredModel(content=b"")
    if found.sha256 != model.sha256:
        raise InputFileError(
            f"'{path.name}' of the report is not in the run directory, or it has changed since",
            hint="run ptq evaluate again",
        )
    return found


def _made_again(report: Report, run: RunDirectory, others: Additions) -> tuple[bytes, tuple[str, ...]]:
    details = _optional(run.details, partial(read_document, Details))
    if details is not None and details.quantized_sha256 != report.model.quantized_model.sha256:
        details = None
    recipe = _optional(run.report_recipe, _read_recipe) or ""
    return make_page(report, details, recipe, lambda: read_material(report, run), run, others)


def _read_recipe(path: Path) -> str:
    file_layer(path)  # or it is damaged, and no command could read it
    return path.read_text(encoding="utf-8")


def _is_of(report: Report, analysis: Analysis) -> bool:
    return analysis.models.quantized_model.sha256 == report.model.quantized_model.sha256


def _optional(path: Path, read: Callable[[Path], Found]) -> Found | None:
    """Read a file; None if it is missing or of another format version."""
    try:
        return read(path) if path.is_file() else None
    except PtqError:
        return None


def _origin(details: Details | None, recipe: str, run: RunDirectory) -> Origin:
    place = os.path.relpath(run.path)
    command = [
        "ptq",
        "quantize",
        "--recipe",
        os.path.join(place, run.report_recipe.name),  # noqa: PTH118
        "--set",
        "run.evaluate=true",
    ]
    if place != "ptq-run":
        command += ["--run", place]
    notes = details.notes if details is not None else ()
    if not recipe:
        notes += ("The settings behind this report are not in the run directory.",)
    return Origin(shlex.join(command), recipe, run.report_recipe.name, notes)
