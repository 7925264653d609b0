"""``analyze``: where a quantized model loses, tensor by tensor and layer by layer, and what to try."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.analysis.analysis_subject import (
    ACTIVATIONS_ALONE,
    WEIGHTS_ALONE,
    OpenedAnalysis,
    Question,
    make_subject,
    open_analysis,
)
from ptq_cli.analysis.causes import better_activation_method, better_weight_method
from ptq_cli.analysis.judge import Judge, Yardstick
from ptq_cli.analysis.measure_layers import LayerSubject, Measured, layer_rows, measure
from ptq_cli.analysis.overlays import QUANTITIES, overlay_files, overlay_path
from ptq_cli.analysis.tensor_rows import activation_rows, constant_rows
from ptq_cli.calibdata.bind import fixed_batch_size, is_step
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.documents import to_json
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import sizes_of
from ptq_cli.evaluation.document.analysis_document import (
    Analysis,
    AnalyzedModels,
    Cost,
    MetricSummary,
    NoiseShare,
    NoiseShares,
    Samples,
    TensorAnalysis,
    noise_shares,
)
from ptq_cli.evaluation.document.gate_result import current_time
from ptq_cli.evaluation.document.report_document import NO_SATURATION, LayerEntry, Saturation
from ptq_cli.evaluation.metrics.metric_registry import SQNR
from ptq_cli.evaluation.verification import saturation_here
from ptq_cli.models.graph_reading import nested_graphs
from ptq_cli.pipeline.evaluation.evaluation_set import pieces_of
from ptq_cli.pipeline.evaluation.report_page import page_with
from ptq_cli.pipeline.exported_file import evaluated_layers, model_summary, plan_of
from ptq_cli.placement.kernel_costs import KernelTimes
from ptq_cli.placement.tensor_settings import tensor_recipe, tensor_settings
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.proof.operators import prove_operators
from ptq_cli.qdq.read.constant_values import ConstantValues
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.quantizer_families import CenterWeights
from ptq_cli.recover.recovery_effects import recovered_db
from ptq_cli.runtime.engine_registry import engine_of
from ptq_cli.setup.output_checks import input_files, require_free_outputs
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory, library_versions


@dataclass(frozen=True, kw_only=True)
class AnalysisResult:
    """The result of ``analyze``.

    Attributes:
        also: other files that were written there: ``report.html``, where there is a report of this model.
        is_last_evaluation: whether the samples are those of the run's last evaluation, because no others
            were given.
        unit: what is counted as one: ``sample``, or ``step`` where each item of the data is run as it is.
    """

    analysis: Analysis
    run: RunDirectory
    also: tuple[str, ...] = ()
    overlays: tuple[Path, ...] = ()
    is_last_evaluation: bool = False
    unit: str = "sample"
    saturation: Saturation = NO_SATURATION


def run_analyze(
    request: Request,
    run: RunDirectory,
    quantized_model: Path | None = None,
    question: Question | None = None,
    progress: ProgressCallback = silent,
    *,
    overlay: Path | None = None,
) -> AnalysisResult:
    """Measure what each quantized tensor and each layer costs, and write ``analysis.json`` and the page.

    Without data, those of the run's last evaluation are used, or else those of the recipe; without a number
    of samples, the first 256. Beside ``overlay``, a file for Model Explorer with the SQNR, lie those of
    kernels, bits and times.
    """
    question = question or Question()
    opened = open_analysis(request, run, quantized_model, progress)
    if overlay is not None:
        require_free_outputs(
            [overlay_path(overlay, item) for item in QUANTITIES], input_files(opened.resolved.recipe)
        )
    progress(Progress("reading both models", 0, None))
    plan = plan_of(opened.pair.float_model, opened.resolved.target)
    layers = evaluated_layers(plan, opened.origin, opened.pair.quantized_name)
    progress(Progress("two more forward passes, with float weights and with float activations", 0, None))
    subject = make_subject(opened.twins, layers, question, opened.yardstick)
    machine = opened.resolved.machine
    measured = measure(
        subject,
        pieces_of(
            opened.dataset,
            opened.inputs,
            opened.resolved.recipe.data.batch_size,
            subject.staged,
            whole_batches=any(map(nested_graphs, opened.twins.float_model.graph)),
        ),
        threads=machine.threads,
        total=opened.dataset.count,
        progress=progress,
    )
    tensors = _tensors(opened, measured, plan)
    saturation = saturation_here(opened.pair.quantized_model.load(), opened.resolved.target)
    analysis = _assembled(opened, run, question, subject, measured, plan, layers, tensors, saturation)
    page = page_with(analysis, run)
    shown = _overlays(overlay, analysis, opened) if overlay is not None else {}
    write_together({run.analysis: to_json(analysis).encode(), **page, **shown})
    return AnalysisResult(
        analysis=analysis,
        run=run,
        also=tuple(path.name for path in page),
        overlays=tuple(shown),
        is_last_evaluation=opened.is_last_evaluation,
        unit="step" if is_step(opened.inputs) else "sample",
        saturation=saturation,
    )


def _overlays(file: Path, analysis: Analysis, opened: OpenedAnalysis) -> dict[Path, Content]:
    return overlay_files(
        file,
        analysis,
        opened.pair.quantized_model.load(),
        opened.resolved.target,
        opened.dataset,
        threads=opened.resolved.machine.threads,
    )


def _assembled(
    opened: OpenedAnalysis,
    run: RunDirectory,
    question: Question,
    subject: LayerSubject,
    measured: Measured,
    plan: Plan,
    layers: Sequence[LayerEntry],
    tensors: tuple[TensorAnalysis, ...],
    saturation: Saturation,
) -> Analysis:
    recipe, dataset = opened.resolved.recipe, opened.dataset
    models = model_summary(recipe.model.path, run, opened.pair, opened.calibration)
    # Of one sample: a model that fixes another batch size is counted for that.
    batch = fixed_batch_size(opened.inputs) or 1
    sizes = sizes_of(opened.inputs, measured.sizes, batch)
    work = multiply_accumulates(opened.twins.float_model, sizes).of_one(batch).counts
    inside = opened.twins.containers
    placed = tuple(
        replace(layer, integer=True, reason="") if layer.name in inside else layer
        for layer in _as_run(layers, opened.twins, opened.resolved.target, sizes)
    )
    metric = _metric_summary(opened.yardstick, measured) if question.sensitivity else None
    times = KernelTimes(opened.twins.float_model, plan, opened.resolved.target, sizes)
    more = times.more_in_float({layer.name for layer in placed if layer.integer})
    rows = layer_rows(placed, subject, measured, tensors, work, metric, question.order, saturation)
    source = relative_location(dataset.source, Path.cwd())
    return Analysis(
        created=current_time(),
        versions=library_versions(),
        models=AnalyzedModels(models.source, models.float_model, models.quantized_model),
        target=recipe.quantization.target,
        samples=Samples(source, measured.samples, dataset.digest()),
        metric=metric,
        shares=_shares(opened, measured, metric),
        order=question.order,
        cost=_cost(subject, work),
        tensors=tensors,
        layers=tuple(replace(row, float_time=more.get(row.name)) for row in rows),
    )


def _tensors(opened: OpenedAnalysis, measured: Measured, plan: Plan) -> tuple[TensorAnalysis, ...]:
    settings, calibration = opened.resolved.recipe.amax, opened.calibration
    pairs = {site.tensor: site.pairs for site in plan.weights}
    # A rung, a target or a bias may have moved one tensor's range away from what the method says.
    now = opened.origin.get(MetadataKey.AMAX_METHOD, "")

    def better(name: str, parameters: QuantParameters) -> str:
        found = better_activation_method(calibration.statistics.get(name), parameters, settings)
        return found if found != now else ""

    def better_weights(tensor: str, weight: ConstantValues) -> str:
        found = better_weight_method(weight, settings, pairs.get(tensor))
        return found if found != settings.weight_method else ""

    histograms = calibration.provenance.method == "histogram"
    return (
        *activation_rows(opened.twins, measured, better, histograms=histograms),
        *constant_rows(opened.twins, better_weights, _weight_bits(opened, plan), recovered_db(opened.origin)),
    )


def _weight_bits(opened: OpenedAnalysis, plan: Plan) -> dict[str, int]:
    """Return the bits that weights, which are not looked up, were exported with."""
    asked = tensor_recipe(opened.resolved.recipe)
    settings = tensor_settings(opened.twins.float_model, plan, opened.resolved.target, asked)
    families = settings.weight_families.items()
    return {site.tensor: family.bits for site, family in families if not isinstance(family, CenterWeights)}


def _as_run(
    layers: Sequence[LayerEntry], twins: TwinGraphs, target: Target, sizes: Mapping[str, Sequence[int]]
) -> tuple[LayerEntry, ...]:
    """Return the layers, with those float that the runtime runs so although they are quantized."""
    engine = engine_of(target)
    if engine is None:
        return tuple(layers)
    model = twins.quantized_model
    work = multiply_accumulates(model, sizes)
    proofs = {proof.name: proof for proof in prove_operators(model, target, work, engine.find_kernels(model))}
    return tuple(
        replace(layer, integer=False, reason=proofs[layer.name].reason)
        if layer.integer and layer.name in proofs and proofs[layer.name].placement == "float"
        else layer
        for layer in layers
    )


def _metric_summary(yardstick: Yardstick, measured: Measured) -> MetricSummary:
    metric, has_labels = measured.output.metric, yardstick.judged is not None
    return MetricSummary(
        name=yardstick.name,
        unit=metric.unit,
        needs_labels=has_labels,
        higher_is_better=metric.higher_is_better,
        float_value=measured.float_output.value if has_labels else None,
        quantized_value=measured.output.value,
        sqnr_db=measured.output.sqnr_db,
    )


def _shares(opened: OpenedAnalysis, measured: Measured, metric: MetricSummary | None) -> NoiseShares:
    origin, has_metric = opened.origin, metric is not None and metric.name != SQNR

    def share(judge: Judge) -> NoiseShare:
        return NoiseShare(judge.sqnr_db, judge.value if has_metric else None)

    found = {name: share(judge) for name, judge in measured.halves.items()}
    formats = opened.resolved.target.activation.formats
    return noise_shares(
        found.get(WEIGHTS_ALONE),
        found.get(ACTIVATIONS_ALONE),
        share(measured.output),
        recovered=MetadataKey.RECOVERY in origin,
        ranges=MetadataKey.RANGES in origin,
        wide=next((item for item in formats if item in _WIDE), ""),
        why=_missing(opened.twins, found),
    )


_WIDE = ("uint16", "int16")  # Integers that lose next to nothing of an activation


def _missing(twins: TwinGraphs, found: Collection[str]) -> str:
    """Return why one of the two shares was not measured; empty if both were."""
    if len(found) == len((WEIGHTS_ALONE, ACTIVATIONS_ALONE)):
        return ""
    if not twins.constants:
        return "no weight is quantized: all that is lost is lost by the activations"
    if not (twins.pairs or twins.containers or twins.dynamic) and WEIGHTS_ALONE in found:
        return "the file quantizes no activation: kernels of the runtime lose what the weights do not"
    if WEIGHTS_ALONE in found:
        return "activations become integers at each run, which cannot be done with float weights"
    return "constants of more than 2 GB: neither share was measured"


def _cost(subject: LayerSubject, work: Mapping[str, int | None]) -> Cost:
    staged = subject.staged
    weights = [float(sum(work.get(name) or 0 for name in stage.nodes)) for stage in staged.stages]
    if not sum(weights):
        weights = [1.0] * len(weights)
    again = sum(weights[index] for layer in subject.layers for index in staged.behind(layer))
    whole = 2 + len(subject.halves)
    return Cost(2 * len(subject.layers), round(whole + 2 * again / sum(weights), 3))
