"""``report.html``, from a run in memory or its directory: histograms, ranges, shapes and types shown."""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.choice import Choice, count_clipped, counts_between, expected_error, signed_bins
from ptq_cli.collectors.calibration_file import Calibration, load_calibration
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.documents import read_document, to_json
from ptq_cli.core.errors import InputFileError, PtqError, StaleCalibrationError
from ptq_cli.core.files import write_together
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.device_document import DeviceAnswers
from ptq_cli.evaluation.document.report_document import Details, ModelEntry, Report
from ptq_cli.latency.measure_profile import operators_digest
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.models.graph_reading import every_node, value_spec
from ptq_cli.models.pair_operators import QUANTIZE, integers_of
from ptq_cli.pipeline.calibration_view import MethodView, TensorView, view_tensors
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.placement.placed_graph import place
from ptq_cli.placement.ranges import statistics_of
from ptq_cli.placement.tensor_settings import TensorRecipe, tensor_recipe
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.recipe.recipe_layers import file_layer, merge_layers
from ptq_cli.report.html.fact_rows import Evidence, LayerEvidence, MethodRange, Origin, TensorEvidence
from ptq_cli.report.html.page_view import NOT_ANALYZED, PageInput, render_page
from ptq_cli.report.text.markdown import devices_to_markdown, report_to_markdown
from ptq_cli.setup.resolve import named_target
from ptq_cli.setup.run_directory import RunDirectory

_BARS = 72
# Tensors that get a histogram and every method's range; a search takes some 10 ms, and 3 kB of the page.
_MOST_DRAWN = 400
# Operators that may lie between an integer layer and the QuantizeLinear of its output: a ReLU, a Clip.
_MOST_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a run holds."""

    float_model: ir.Model
    quantized_model: ir.Model
    calibration: Calibration
    plan: Plan
    target: Target
    recipe: TensorRecipe


def gather(
    material: Material,
) -> tuple[tuple[LayerEvidence, ...], tuple[TensorEvidence, ...], tuple[str, ...]]:
    """The layers, the quantized activations, and what is left out of them."""
    model = material.float_model
    placement = place(model, material.plan, material.target, material.recipe, material.calibration)
    plan, settings = placement.plan, placement.settings.activations
    stored = dict(stored_parameters(material.quantized_model))
    # Tensors that are tied share a scale, and it was decided from the union of what was counted of them.
    sources = [name for name in plan.sources if name in stored]
    statistics = {name: statistics_of(plan, name, material.calibration) for name in sources}
    drawn = _worst(statistics, stored)
    views = {view.name: view for view in view_tensors(plan, settings, material.calibration, drawn)}
    tensors = tuple(_tensor(name, statistics[name], stored[name], views.get(name)) for name in sources)
    left_out = len(sources) - len(drawn)
    notes = (
        (f"{left_out} more tensors are not shown; these {_MOST_DRAWN} have the lowest expected SQNR",)
        if left_out
        else ()
    )
    return tuple(_layers(model, plan, stored)), tensors, notes


def stored_parameters(model: ir.Model) -> Iterator[tuple[str, QuantParameters]]:
    """Yield each quantized tensor of a model, by its name in the float model, with its parameters.

    A pair whose scale is not a constant of one element is ignored.
    """
    for node in every_node(model.graph):
        parameters = grid_of(node).parameters if node.op_type == QUANTIZE else None
        if parameters is None or node.inputs[0] is None:
            continue
        yield node.inputs[0].name or "", parameters
        # An output of the model has given its name to what stands behind the pair.
        for reader in integers_of(node).consumers():
            yield reader.outputs[0].name or "", parameters


def _worst(
    statistics: Mapping[str, TensorStatistics], stored: Mapping[str, QuantParameters]
) -> tuple[str, ...]:
    sources = tuple(statistics)
    if len(sources) <= _MOST_DRAWN:
        return sources

    def expected(name: str) -> float:
        found = statistics[name]
        if found.histogram is None:
            return 0.0
        return expected_error(found, found.histogram, stored[name]).sqnr_db

    worst = set(sorted(sources, key=expected)[:_MOST_DRAWN])
    return tuple(name for name in sources if name in worst)


def _tensor(
    name: str, statistics: TensorStatistics, parameters: QuantParameters, view: TensorView | None
) -> TensorEvidence:
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    evidence = TensorEvidence(
        name=name,
        format=parameters.format.name,
        low=low,
        high=high,
        values=statistics.count,
        zeros=statistics.zeros if statistics.histogram is not None else None,
        chosen=_chosen(statistics, parameters, view),
        ranges=(),
    )
    if view is None:
        return evidence
    ranges = tuple(_method_range(item) for item in view.methods.values())
    return replace(evidence, ranges=ranges, counts=_counts(statistics, low, high))


def _chosen(
    statistics: TensorStatistics, parameters: QuantParameters, view: TensorView | None
) -> MethodRange:
    """The range that the file has, named by the method that chose it, if one at hand did."""
    if view is not None:
        own = parameters.scale, parameters.zero_point
        methods = view.methods.values()
        same = [item for item in methods if (item.parameters.scale, item.parameters.zero_point) == own]
        found = next((item for item in same if item.method == view.chosen), same[0] if same else None)
        if found is not None:
            return _method_range(found)
    lowest, highest = parameters.format.qmin, parameters.format.qmax
    scale, zero_point = float(parameters.scale), int(parameters.zero_point)
    low, high = (lowest - zero_point) * scale, (highest - zero_point) * scale
    histogram = statistics.histogram
    if histogram is None:
        return MethodRange(method="", low=low, high=high)
    clipped = count_clipped(statistics, histogram, Choice(low, high))
    error = expected_error(statistics, histogram, parameters)
    return MethodRange(method="", low=low, high=high, sqnr_db=error.sqnr_db, clipped=clipped[0])


def _method_range(view: MethodView) -> MethodRange:
    sqnr = view.error.sqnr_db if view.error is not None else None
    # Between two numbers; so many are surely beyond the range.
    clipped = view.clipped[0] if view.clipped is not None else None
    return MethodRange(
        method=view.method, low=view.choice.low, high=view.choice.high, sqnr_db=sqnr, clipped=clipped
    )


def _counts(statistics: TensorStatistics, low: float, high: float) -> tuple[float, ...]:
    histogram = statistics.histogram
    if histogram is None or not histogram.counts.size or not high > low:
        return ()
    found = counts_between(signed_bins(statistics, histogram), np.linspace(low, high, _BARS + 1))
    return tuple(float(count) for count in found)


def _layers(model: ir.Model, plan: Plan, stored: Mapping[str, QuantParameters]) -> Iterator[LayerEvidence]:
    weights = {
        site.node: f"{'dynamic uint8, ' if site.dynamic else ''}{site.format.name} weight"
        for site in plan.weights
    }
    weights |= {layer.name: f"weight: {layer.weight}" for layer in plan.layers if layer.weight}
    integer = {layer.name for layer in plan.layers if layer.quantized}
    work = multiply_accumulates(model, {}).counts
    for node in every_node(model.graph):
        name = node.name or ""
        spec = value_spec(node.outputs[0])
        held = _held_by(node.outputs[0], stored) if name in integer else None
        site = plan.activations.get(held) if held is not None else None
        dtype = stored[held].format.name if held is not None else str(spec.dtype)
        text = ", ".join(filter(None, (dtype, weights.get(name))))
        yield LayerEvidence(
            name=name,
            dtype=text,
            shape=spec.shape,
            tensor=site.source if site is not None else "",
            multiply_accumulates=work.get(name),
        )


def _held_by(value: ir.Value, stored: Mapping[str, QuantParameters]) -> str | None:
    """The quantized tensor that holds a layer's output; it may lie behind a ReLU."""
    for _ in range(_MOST_STEPS):
        if value.name in stored:
            return value.name
        readers = list(value.consumers())
        if len(readers) != 1 or len(readers[0].outputs) != 1:
            return None
        value = readers[0].outputs[0]
    return None


_Found = TypeVar("_Found")

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


def _optional(path: Path, read: Callable[[Path], _Found]) -> _Found | None:
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
