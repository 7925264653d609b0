"""What is decided of a calibrated model, and recovered, before anything is written."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from ptq_cli.amax.finish import ScaleRules
from ptq_cli.calibdata.dataset.batches import WHOLE
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.files import PartialFolder
from ptq_cli.core.progress import LayerProgress, ProgressCallback
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.opset import opset_of, raise_opset
from ptq_cli.pipeline.calibration.moments import (
    MomentSubject,
    divided,
    measure_blocks,
    moments_provenance,
    require_fit,
)
from ptq_cli.pipeline.exporting.latency_preference import LatencyPreference, prefer_latency
from ptq_cli.pipeline.exporting.recovery_data import (
    RangesByEffect,
    RecoveryData,
    choose_ranges,
    recovery_samples,
)
from ptq_cli.pipeline.exporting.recovery_effects import LayerRecovery, Recovery, RungEffect
from ptq_cli.pipeline.setup.resolve import Resolved
from ptq_cli.pipeline.setup.run_directory import RunDirectory
from ptq_cli.placement.placed_graph import Placement, place
from ptq_cli.placement.ranges import (
    decide_activations,
    require_ranges,
    unsearched,
    with_moved_statistics,
    without_noisy_forms,
)
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.formats import expose_clamps, fit_clamps
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.write.constant_pairs import Places, replace_constants, replaced_arrays
from ptq_cli.qdq.write.integer_storage import Keep, StreamedWeights, as_it_is
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import DecidedConstants, Parameters, decide_all
from ptq_cli.recipe.quantizer_families import FixedPointWeights, ScaledWeights, StepWeights
from ptq_cli.recipe.recovery_rungs import RANGES, ROUND, WEIGHED, recovery_rungs
from ptq_cli.recipe.sections import FLOAT16, LATENCY
from ptq_cli.recovery.moments_file import Moments
from ptq_cli.recovery.quantized_layer import SolvedLayer, quantized_layers
from ptq_cli.recovery.recover_rounding import recover_rounding, weigh_rounding
from ptq_cli.recovery.recovery_samples import IN_MEMORY, RecoverySamples, output_sqnr
from ptq_cli.recovery.tensor_moments import TensorMoments, moment_sites
from ptq_cli.runtime.machine import Machine
from ptq_cli.runtime.session import Session


@dataclass(frozen=True, kw_only=True)
class DecidedModel:
    """A model of which everything is decided, and nothing is written.

    Attributes:
        model: the float model, in an opset that has the integers.
        placement: where which quantizer goes.
        plan: of the placement, with clamps exposed.
        parameters: of every site.
        unsearched: tensors whose method had only one candidate, with the method.
        latency: what was moved to float for speed; None if that was not asked for.
        ranges: which ranges of activations were chosen by their effect; None if that was not asked for.
        work: multiply-accumulates of each layer.
        begun: the file that holds integers of a large model already; None of another.
    """

    model: ir.Model
    placement: Placement
    plan: Plan
    parameters: Parameters
    unsearched: Mapping[str, str]
    latency: LatencyPreference | None = None
    ranges: RangesByEffect | None = None
    work: Mapping[str, int | None] = field(default_factory=dict)
    begun: ConstantsFile | None = None

    def write(self, model: ir.Model) -> Places:
        """Make a graph the quantized one, in place; return where it holds what was decided."""
        return quantize_in_place(model, self.plan, self.parameters)


def decided_model(
    resolved: Resolved,
    calibration: Calibration,
    float_model: StoredModel,
    graph: ir.Model,
    run: RunDirectory,
    output: Path,
    plan: Plan | None,
    data: RecoveryData | None,
    progress: ProgressCallback,
) -> DecidedModel:
    """Decide scales and integers of a model from its calibration.

    Args:
        resolved: the recipe and the target.
        calibration: the statistics.
        float_model: that was calibrated.
        graph: its graph, which the result takes.
        run: the run directory, for messages.
        output: the file that the graph will be written to; large constants go where its data will be.
        plan: of the model for the target, where one was made already; otherwise it is made here.
        data: to choose ranges of activations by, if the recipe asks for that; None does without.
        progress: is told about a measurement of operators.

    Raises:
        PtqError: as ``run_export`` does.
    """
    recipe, target, asked = resolved.recipe, resolved.target, tensor_recipe(resolved.recipe)
    calibration = with_moved_statistics(calibration, graph.graph)
    begun = ConstantsFile(output.parent, output.name) if float_model.data else None
    keep = StreamedWeights(begun) if begun is not None else as_it_is
    plan = plan if plan is not None else make_plan(graph, target)
    placement = place(graph, plan, target, asked, calibration)
    latency = None
    if recipe.export.prefer == LATENCY:
        latency = prefer_latency(graph, placement.plan, resolved, progress)
        placement = place(graph, plan, target, asked, calibration, faster=latency.in_float)
    ranges, name = None, run.float_model.name
    if data is not None and RANGES in recovery_rungs(recipe.recovery):

        def build(placed: Placement) -> tuple[ir.Model, Plan]:
            trial = _decide(float_model.load(), placed, calibration, name, as_it_is)
            trial.write(trial.model)
            return trial.model, trial.plan

        placement, ranges = choose_ranges(
            build, float_model, placement, calibration, data, plan.activations, resolved.machine, progress
        )
    decided = _decide(graph, placement, calibration, name, keep)
    work = multiply_accumulates(decided.model).counts
    return replace(decided, latency=latency, ranges=ranges, work=work, begun=begun)


def _decide(
    model: ir.Model, placement: Placement, calibration: Calibration, name: str, keep: Keep
) -> DecidedModel:
    settings = placement.settings
    require_ranges(placement.plan, calibration)
    decisions = decide_activations(
        placement.plan,
        settings.activations,
        calibration,
        settings.activation_families,
        ScaleRules(half=placement.float_type == FLOAT16),
    )
    found = {source: decision.parameters for source, decision in decisions.items()}
    on_own_grid = placement.on_own_grid(found)
    found = fit_clamps(model, placement.plan, found) | on_own_grid
    plan = without_noisy_forms(model, placement.plan, found, calibration)
    plan = expose_clamps(model, plan, on_own_grid)
    model = with_opset(model, placement.opset, name)
    quantizer_of = placement.quantizers.__getitem__
    parameters = decide_all(model, plan, lambda site: found[site.source], quantizer_of, keep)
    methods = {site.tensor: item.weight_method for site, item in settings.weights.items()}
    return DecidedModel(
        model=model,
        placement=placement,
        plan=plan,
        parameters=parameters,
        unsearched=unsearched(decisions) | {name: methods[name] for name in parameters.unsearched},
    )


def with_opset(model: ir.Model, opset: int, what: str) -> ir.Model:
    """Return the model in an opset that its placement needs; may change it.

    Raises:
        InvalidOnnxError: it cannot be converted to that opset, or only with other operators.
    """
    if opset_of(model) >= opset:
        return model
    names = [node.name for node in model.graph.all_nodes()]
    hint = "use 5 to 8 bits without blocks, or export the model again with that opset"
    needs = "(which the target, 4-bit or 16-bit integers, or blocks need)"
    try:
        raised = raise_opset(model, opset, what)
    except InvalidOnnxError as error:
        raise InvalidOnnxError(f"{error.message} {needs}", hint=hint) from error
    if [node.name for node in raised.graph.all_nodes()] != names:
        raise InvalidOnnxError(
            f"converting '{what}' to opset {opset} {needs} changed its operators", hint=hint
        )
    return raised


# The rungs of recovery on a quantized model that is not written yet, and what they did.


STAGE = "recover"
MOMENTS = "moments.safetensors"
MEMORY_SHARE = 2
"""One part of so many of the memory that is allowed is for tensors that wait."""


@dataclass(frozen=True, kw_only=True)
class RecoveryMaterial:
    """What a model is recovered from.

    Attributes:
        calibration: the statistics.
        data: the calibration data; None where moments are all there is.
        moments: of what the layers read, if they were collected before.
    """

    calibration: Calibration
    data: RecoveryData | None
    moments: Moments | None


def recover_model(
    made: DecidedModel,
    float_model: StoredModel,
    rungs: Sequence[str],
    material: RecoveryMaterial,
    machine: Machine,
    folder: Path,
    progress: ProgressCallback,
    *,
    but: Collection[WeightSite] = (),
) -> tuple[DecidedModel, Recovery]:
    """Choose the weights of a model again, rung by rung, and keep what makes the output better.

    Args:
        made: the model as it is decided.
        float_model: that it was made from.
        rungs: in the order in which they run.
        material: what they learn from.
        machine: what of it may be used.
        folder: where tensors wait that do not fit into memory.
        progress: is called as the work proceeds.
        but: weights that stay as they are.

    Returns:
        The model with what is decided in the end, and what was done.

    Raises:
        RecoveryError: there are too few samples.
        StaleMomentsError: the moments are of another calibration, or of other ranges.
        RuntimeFailedError: ONNX Runtime failed.
        PtqError: the data cannot be read.
    """
    samples = recovery_samples(material.data) if material.data is not None else None
    kept = tuple(site for site in made.plan.weights if site not in but)
    work = _Work(
        made, replace(made.plan, weights=kept), float_model, material, samples, machine, folder, progress
    )
    effects = {WEIGHED: work.weigh, ROUND: work.round}
    recovery = Recovery(tuple(effects[rung]() for rung in rungs))
    return work.made, recovery


class _Work:
    """One model, on its way from rung to rung."""

    def __init__(
        self,
        made: DecidedModel,
        plan: Plan,
        float_model: StoredModel,
        material: RecoveryMaterial,
        samples: tuple[RecoverySamples, int, int] | None,
        machine: Machine,
        folder: Path,
        progress: ProgressCallback,
    ) -> None:
        self.made = made
        self._plan, self._float_model, self._material = plan, float_model, material
        self._samples, self._machine, self._folder = samples, machine, folder
        self._progress = progress
        self._waiting: PartialFolder | None = None
        self._float_graph = float_model.load()
        self._free = free_scales(made.placement)

    def weigh(self) -> RungEffect:
        """Choose the weights again by what each layer reads."""
        count = self._material.calibration.provenance.samples
        moments = self._moments()
        self._progress(LayerProgress(STAGE, 0, None))
        found = weigh_rounding(
            self._float_graph,
            self._plan,
            self.made.parameters,
            self._free,
            moments,
            largest=self._largest(),
            samples=count,
            threads=self._machine.threads,
            done=self._done,
        )
        before = after = math.nan
        kept = found.changed
        if self._samples is not None and kept:
            model, places = self._written()
            before = self._sqnr(model)
            replace_constants(model, replaced_arrays(found.decided, places))
            after = self._sqnr(model)
            kept = after > before
        if kept:
            self._keep(found.decided)
        return RungEffect(
            rung=WEIGHED,
            changed=found.changed,
            kept=kept,
            before=before,
            after=after,
            samples=count,
            decided_by=self._samples[2] if self._samples is not None else 0,
            layers=_layers(found.layers),
            refused=found.refused,
            damped=_damped(found.layers),
        )

    def round(self) -> RungEffect:
        """Choose the weights again behind the quantized layers before."""
        assert self._samples is not None  # noqa: S101 - the data were opened for this rung
        samples, learned, decided = self._samples
        self._progress(LayerProgress(STAGE, 0, None))
        model, places = self._written()
        found = recover_rounding(
            # Stages of the model run as the whole does, so they are cut out of it as it is written.
            TwinGraphs(self._float_graph, model),
            places,
            self._plan,
            self.made.parameters,
            self._free,
            samples,
            folder=self._folder,
            memory=self._machine.memory // MEMORY_SHARE if self._machine.memory is not None else IN_MEMORY,
            threads=self._machine.threads,
            done=self._done,
        )
        kept = found.changed and found.after > found.before
        if kept:
            self._keep(found.decided)
        return RungEffect(
            rung=ROUND,
            changed=found.changed,
            kept=kept,
            before=found.before,
            after=found.after,
            samples=learned,
            decided_by=decided,
            layers=_layers(found.layers),
            refused=found.refused,
            damped=_damped(found.layers),
        )

    def _written(self) -> tuple[ir.Model, Places]:
        """Return the model as it would be written now, and where it holds what was decided."""
        model = with_opset(self._float_model.load(), self.made.placement.opset, "the float model")
        return model, self.made.write(model)

    def _keep(self, found: DecidedConstants) -> None:
        self.made = replace(self.made, parameters=self.made.parameters.changed(found))

    def _largest(self) -> dict[str, float]:
        return largest_values(self._material.calibration, self._float_graph)

    def _done(self, done: int, total: int) -> None:
        self._progress(LayerProgress(STAGE, done, total))

    def _moments(self) -> Mapping[str, TensorMoments]:
        """Return the moments of the run, if they fit; otherwise collect them."""
        calibration, data = self._material.calibration, self._material.data
        layers, _ = quantized_layers(self._float_graph, self._plan, self.made.parameters, self._free)
        sites = moment_sites(layers.values(), self._largest(), calibration.provenance.samples)
        size = data.batch_size if data is not None else 0
        begun = moments_provenance(calibration, sites, WHOLE, size)
        if self._material.moments is not None:
            require_fit(self._material.moments, begun, MOMENTS)
            return self._material.moments.statistics
        assert data is not None  # noqa: S101 - there is one of both
        waiting = (
            PartialFolder(self._folder, MOMENTS) if len(divided(sites, self._machine.memory)) > 1 else None
        )
        subject = MomentSubject(
            model=self._float_model.load(),
            stored=self._float_model,
            inputs=data.inputs,
            dataset=data.dataset,
            batch_size=size,
            allow_nonfinite=data.allow_nonfinite,
        )
        moments = measure_blocks(
            subject,
            sites,
            self._machine,
            begun,
            self._progress,
            folder=waiting.path if waiting is not None else None,
        )
        self._waiting = waiting  # Arrays are mapped from its files.
        return moments.statistics

    def _sqnr(self, model: ir.Model) -> float:
        """Return the SQNR of the quantized model's outputs on the samples to decide by."""
        assert self._samples is not None  # noqa: S101 - the caller has asked
        pieces = self._samples[0].decide
        # One thread, so that the decision does not depend on how many there are.
        wanted, found = (Session(item, threads=1) for item in (self._float_model, serialize(model)))
        return output_sqnr([wanted.run(piece) for piece in pieces], [found.run(piece) for piece in pieces])


def _layers(solved: Mapping[str, SolvedLayer]) -> dict[str, LayerRecovery]:
    return {name: LayerRecovery(before=item.before, after=item.after) for name, item in solved.items()}


def _damped(solved: Mapping[str, SolvedLayer]) -> tuple[str, ...]:
    return tuple(name for name, item in solved.items() if item.damped)


def largest_values(calibration: Calibration, float_model: ir.Model) -> dict[str, float]:
    """Return the largest magnitude of each tensor that was measured, and of those with the same values."""
    calibration = with_moved_statistics(calibration, float_model.graph)
    return {name: float(max(-item.low, item.high)) for name, item in calibration.statistics.items()}


def free_scales(placement: Placement) -> dict[WeightSite, bool]:
    """Return of each weight whose integers are evenly spread whether its scales may be any."""
    found = {}
    for site, family in placement.families.items():
        if isinstance(family, ScaledWeights) and family.dtype is None:
            found[site] = True
        elif isinstance(family, FixedPointWeights | StepWeights):
            found[site] = False
    return found
