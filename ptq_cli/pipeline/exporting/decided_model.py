"""What is decided of a calibrated model, and recovered, before anything is written."""

import gc
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from ptq_cli.amax.finish import ScaleRules
from ptq_cli.calibdata.dataset.batches import WHOLE
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.files import PartialFolder
from ptq_cli.core.formats import BYTE
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.models.files.stored import SMALLEST_MAPPED, StoredModel, mapped_model, serialize
from ptq_cli.models.opset import opset_of, raise_opset
from ptq_cli.pipeline.calibration.moments import (
    MomentSubject,
    divided,
    measure_blocks,
    moments_provenance,
    require_fit,
)
from ptq_cli.pipeline.exporting.float_layers import FloatLayers, choose_float_layers
from ptq_cli.pipeline.exporting.interrupted_recovery import (
    Interruptions,
    RecoveryCheckpoint,
    rung_identity,
)
from ptq_cli.pipeline.exporting.latency_preference import LatencyPreference, prefer_latency
from ptq_cli.pipeline.exporting.range_choice import RangesByEffect, choose_ranges
from ptq_cli.pipeline.exporting.recovery_data import RecoveryData
from ptq_cli.pipeline.exporting.recovery_effects import LayerRecovery, Recovery, RungEffect
from ptq_cli.pipeline.setup.resolve import Resolved
from ptq_cli.pipeline.setup.run_directory import RunDirectory
from ptq_cli.placement.placed_graph import Placement, place
from ptq_cli.placement.ranges import (
    decide_activations,
    require_ranges,
    unsearched,
    with_moved_statistics,
    with_statistics_of_parts,
    without_noisy_forms,
)
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.dynamic_layers import dynamic_candidates
from ptq_cli.plan.formats import expose_clamps, fit_clamps, raise_zero_points
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.write.constant_pairs import Places, replace_constants, replaced_arrays
from ptq_cli.qdq.write.integer_storage import Keep, StreamedWeights, as_it_is
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import DecidedConstants, Parameters, decide_all
from ptq_cli.qdq.write.weight_quantizer import Memory, RememberedQuantizer
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recipe.quantizer_settings import are_plain
from ptq_cli.recipe.recovery_rungs import IN_FLOAT, RANGES, ROUND, ROW, WEIGHED, recovery_rungs
from ptq_cli.recipe.sections import FLOAT16, LATENCY
from ptq_cli.recovery.moments_file import Moments
from ptq_cli.recovery.quantized_layer import quantized_layers
from ptq_cli.recovery.recover_rounding import (
    RecoveredRounding,
    recover_rounding,
    round_work,
    weigh_rounding,
)
from ptq_cli.recovery.rung_work import in_minutes, search_work, seconds_of
from ptq_cli.recovery.shelf import IN_MEMORY
from ptq_cli.recovery.tensor_moments import TensorMoments, moment_sites
from ptq_cli.runtime.machine import Machine


@dataclass(frozen=True, kw_only=True)
class DecidedModel:
    """A model of which everything is decided, and nothing is written.

    Attributes:
        model: the float model, in an opset that has the integers.
        plan: of the placement, with clamps exposed.
        unsearched: tensors whose method had only one candidate, with the method.
        begun: the file that holds integers of a large model already; None of another.
    """

    model: ir.Model
    placement: Placement
    plan: Plan
    parameters: Parameters
    unsearched: Mapping[str, str]
    latency: LatencyPreference | None = None
    ranges: RangesByEffect | None = None
    float_layers: FloatLayers | None = None
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
    interruptions: Interruptions,
    progress: ProgressCallback,
) -> DecidedModel:
    """Decide scales and integers of a model from its calibration.

    The result takes ``graph``. Large constants go where the data of ``output`` will be.
    """
    recipe, target, asked = resolved.recipe, resolved.target, tensor_recipe(resolved.recipe)
    calibration = with_moved_statistics(calibration, graph.graph)
    begun = ConstantsFile(output.parent, output.name) if float_model.is_apart else None
    keep = StreamedWeights(begun) if begun is not None else as_it_is
    # Trials of activations decide the same weights again; those of a large model would fill the memory.
    memory: Memory | None = {} if begun is None else None
    plan = plan if plan is not None else make_plan(graph, target)
    placement = place(graph, plan, target, asked, calibration)
    latency = None
    if recipe.export.prefer == LATENCY:
        latency = prefer_latency(graph, placement.plan, resolved, progress)
        placement = place(graph, plan, target, asked, calibration, faster=latency.in_float)
    ranges, float_layers, name = None, None, run.float_model.name
    rungs = recovery_rungs(recipe.recovery) if data is not None else ()

    def build(placed: Placement) -> tuple[ir.Model, Plan]:
        if float_model.size >= SMALLEST_MAPPED:  # Earlier trials are cycles, which nothing looks for here.
            gc.collect()
        trial = _decide(float_model.load(), placed, target, calibration, name, as_it_is, memory)
        trial.write(trial.model)
        return trial.model, trial.plan

    if data is not None and RANGES in rungs:
        with interruptions.rung() as stop:
            placement, ranges = choose_ranges(
                build,
                float_model,
                placement,
                calibration,
                data,
                plan.activations,
                resolved.machine,
                progress,
                stop,
            )
    if data is not None and IN_FLOAT in rungs and not interruptions.stopped:
        faster = latency.in_float if latency is not None else {}
        ranged = placement

        def without(in_float: Mapping[str, str], dynamic: Collection[str]) -> Placement:
            in_float, by_row = {**faster, **in_float}, dict.fromkeys(dynamic, ROW)
            found = place(graph, plan, target, asked, calibration, faster=in_float, dynamic=by_row)
            return found.with_ranges_of(ranged)

        with interruptions.rung() as stop:
            placement, float_layers = choose_float_layers(
                build,
                without,
                float_model,
                placement,
                calibration,
                data,
                target,
                resolved.machine,
                progress,
                stop=stop,
                limit=recipe.recovery.float_time,
                profile=latency.profile if latency is not None else None,
                could_be_dynamic=_could_be_dynamic(graph, placement.plan, resolved),
                known=ranges.reached if ranges is not None else math.nan,
            )
    decided = _decide(graph, placement, target, calibration, name, keep, memory)
    work = multiply_accumulates(decided.model).counts
    return replace(decided, latency=latency, ranges=ranges, float_layers=float_layers, work=work, begun=begun)


def _could_be_dynamic(graph: ir.Model, plan: Plan, resolved: Resolved) -> frozenset[str]:
    """Return the layers that the rung ``float`` may give ranges that are found at each run.

    Rungs do not choose weights behind such ranges again, which costs little with 8 bits alone. A profile does
    not tell what they take.
    """
    recipe, has_profile = resolved.recipe, resolved.recipe.export.prefer == LATENCY
    if has_profile or not are_plain(recipe.weights, recipe.activations):
        return frozenset()
    of_bytes = {site.node for site in plan.weights if site.format.bits == BYTE}
    return frozenset(dynamic_candidates(graph, plan, resolved.target)) & of_bytes


def _decide(
    model: ir.Model,
    placement: Placement,
    target: Target,
    calibration: Calibration,
    name: str,
    keep: Keep,
    memory: Memory | None,
) -> DecidedModel:
    settings = placement.settings
    calibration = with_statistics_of_parts(calibration, placement.plan, model.graph)
    require_ranges(placement.plan, calibration)
    decisions = decide_activations(
        placement.plan,
        settings.activations,
        calibration,
        settings.activation_families,
        ScaleRules(half=placement.float_type == FLOAT16),
        placement.within,
    )
    found = {source: decision.parameters for source, decision in decisions.items()}
    on_own_grid = placement.on_own_grid(found)
    found = fit_clamps(model, placement.plan, found)
    found = raise_zero_points(model, placement.plan, target, found) | on_own_grid
    plan = without_noisy_forms(model, placement.plan, found, calibration)
    plan = expose_clamps(model, plan, on_own_grid)
    model = with_opset(model, placement.opset, name)
    quantizers = placement.quantizers
    if memory is not None:
        quantizers = {site: RememberedQuantizer(own, memory) for site, own in quantizers.items()}
    parameters = decide_all(model, plan, lambda site: found[site.source], quantizers.__getitem__, keep)
    methods = {site.tensor: item.weight_method for site, item in settings.weights.items()}
    return DecidedModel(
        model=model,
        placement=placement,
        plan=plan,
        parameters=parameters,
        unsearched=unsearched(decisions) | {name: methods[name] for name in parameters.unsearched},
    )


def with_opset(model: ir.Model, opset: int, what: str) -> ir.Model:
    """Return the model in an opset that its placement needs; may change it."""
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
A_MINUTE = 60.0
ENOUGH = 1.0
"""Decibels that ``round`` has to gain for ``weighed`` to add nothing, as on five networks."""
MOMENTS = "moments.safetensors"
MEMORY_SHARE = 2
"""One part of so many of the memory that is allowed is for tensors that wait."""


@dataclass(kw_only=True)
class Recovering:
    """The weights of a model are chosen again, rung by rung, and kept if they make the output better.

    Attributes:
        made: the model as it is decided so far.
        data, moments: at least one of both is there.
        folder: where tensors wait that do not fit into memory.
        but: weights that stay as they are.
        interruptions: a rung that Ctrl-C ended is the last.
        checkpoint: the file that an interrupted rung continues from, by its name; None for none.
        every: seconds between two checkpoints.
    """

    made: DecidedModel
    float_model: StoredModel
    calibration: Calibration
    data: RecoveryData | None
    moments: Moments | None
    machine: Machine
    folder: Path
    progress: ProgressCallback
    but: Collection[WeightSite] = ()
    interruptions: Interruptions
    checkpoint: Callable[[str], Path] | None = None
    every: float = 0.0

    def __post_init__(self) -> None:
        self._samples = self.data.samples if self.data is not None else None
        kept = tuple(site for site in self.made.plan.weights if site not in self.but)
        self._plan = replace(self.made.plan, weights=kept)
        self.float_model = mapped_model(self.float_model, self.folder)
        self._float_graph = self.float_model.load()
        self._free = free_scales(self.made.placement)
        self._largest = largest_values(self.calibration, self._float_graph)
        self._waiting: PartialFolder | None = None

    def climb(self, rungs: Sequence[str]) -> Recovery:
        """Run the rungs, and return what each did.

        Beside ``round``, which does the same and more, ``weighed`` is the last, or left out.
        """
        self._tell_time(rungs)
        effects: list[RungEffect] = []
        for rung in sorted(rungs, key=(ROUND, WEIGHED).index):
            if self.interruptions.stopped:
                break
            gained = effects[0].after - effects[0].before if effects and effects[0].kept else 0.0
            if gained >= ENOUGH:
                note = f"{rung} is left out: {effects[0].rung} gained {gained:.1f} dB"
                self.progress(Progress(STAGE, 0, None, note))
                break
            effects.append(self.weigh() if rung == WEIGHED else self.round())
        return Recovery(tuple(effects), interrupted=self.interruptions.stopped)

    def weigh(self) -> RungEffect:
        """Choose the weights again by what each layer reads."""
        count = self.calibration.provenance.samples
        moments, checkpoint = self._moments(), self._checkpoint_of(WEIGHED)
        with self._rung() as stop:
            found = weigh_rounding(
                self._float_graph,
                self._plan,
                self.made.parameters,
                self._free,
                moments,
                largest=self._largest,
                samples=count,
                threads=self.machine.threads,
                progress=self.progress,
                stop=stop,
                checkpoint=checkpoint,
            )
        self._note(checkpoint, found)
        before = after = math.nan
        kept = found.changed
        if self.data is not None and kept:
            sqnr = self.data.judge(self.float_model, self.machine.threads)
            model, places = self._written()
            before = sqnr(serialize(model))
            replace_constants(model, replaced_arrays(found.decided, places))
            after = sqnr(serialize(model))
            kept = after > before
        if kept:
            self._keep(found.decided)
        judged = self._samples[2] if self._samples is not None else 0
        return _effect(WEIGHED, found, kept, (before, after), count, judged)

    def round(self) -> RungEffect:
        """Choose the weights again behind the quantized layers before."""
        assert self._samples is not None  # noqa: S101 - the data were opened for this rung
        samples, learned, judged = self._samples
        model, places = self._written()
        checkpoint = self._checkpoint_of(ROUND)
        with self._rung() as stop:
            found = recover_rounding(
                # Stages of the model run as the whole does, so they are cut out of it as it is written.
                TwinGraphs(self._float_graph, model),
                places,
                self._plan,
                self.made.parameters,
                self._free,
                samples,
                folder=self.folder,
                memory=self.machine.memory // MEMORY_SHARE if self.machine.memory is not None else IN_MEMORY,
                threads=self.machine.threads,
                progress=self.progress,
                stop=stop,
                checkpoint=checkpoint,
            )
        self._note(checkpoint, found)
        kept = found.changed and found.after > found.before
        if kept:
            self._keep(found.decided)
        return _effect(ROUND, found, kept, (found.before, found.after), learned, judged)

    def _written(self) -> tuple[ir.Model, Places]:
        """Return the model as it would be written now, and where it holds what was decided."""
        model = with_opset(self.float_model.load(), self.made.placement.opset, "the float model")
        return model, self.made.write(model)

    def _keep(self, found: DecidedConstants) -> None:
        self.made = replace(self.made, parameters=self.made.parameters.changed(found))

    def _checkpoint_of(self, rung: str) -> RecoveryCheckpoint | None:
        if self.checkpoint is None:
            return None
        identity = rung_identity(rung, self.calibration, self.made.parameters)
        return RecoveryCheckpoint(self.checkpoint(rung), self.every, identity, self.progress)

    def _rung(self) -> AbstractContextManager[Callable[[], bool]]:
        return self.interruptions.rung(
            ", and the same command continues" if self.checkpoint is not None else ""
        )

    def _note(self, checkpoint: RecoveryCheckpoint | None, found: RecoveredRounding) -> None:
        if checkpoint is not None and self.interruptions.stopped:
            checkpoint.note(found.layers, now=True)

    def _tell_time(self, rungs: Sequence[str]) -> None:
        """Say how long the rungs will take, if that is more than a minute."""
        layers, _ = quantized_layers(self._float_graph, self._plan, self.made.parameters, self._free)
        # Where ``round`` is asked for, ``weighed`` runs only if that gained little.
        if ROUND in rungs and self._samples is not None:
            work = round_work(self._float_graph, layers, self.made.parameters, self._samples[0])
        else:
            work = {name: search_work(item, self.made.parameters) for name, item in layers.items()}
        seconds = seconds_of(sum(work.values()), self.machine.threads, A_MINUTE)
        if seconds:
            note = f"choosing the weights takes about {in_minutes(seconds)}; --recover none leaves it out"
            self.progress(Progress(STAGE, 0, None, note))

    def _moments(self) -> Mapping[str, TensorMoments]:
        """Return the moments of the run, if they fit; otherwise collect them."""
        calibration, data = self.calibration, self.data
        layers, _ = quantized_layers(self._float_graph, self._plan, self.made.parameters, self._free)
        sites = moment_sites(layers.values(), self._largest, calibration.provenance.samples)
        size = data.batch_size if data is not None else 0
        begun = moments_provenance(calibration, sites, WHOLE, size)
        if self.moments is not None:
            require_fit(self.moments, begun, MOMENTS)
            return self.moments.statistics
        assert data is not None  # noqa: S101 - there is one of both
        waiting = (
            PartialFolder(self.folder, MOMENTS) if len(divided(sites, self.machine.memory)) > 1 else None
        )
        subject = MomentSubject(
            model=self.float_model.load(),
            stored=self.float_model,
            inputs=data.inputs,
            dataset=data.dataset,
            batch_size=size,
            allow_nonfinite=data.allow_nonfinite,
        )
        moments = measure_blocks(
            subject,
            sites,
            self.machine,
            begun,
            self.progress,
            folder=waiting.path if waiting is not None else None,
        )
        self._waiting = waiting  # Arrays are mapped from its files.
        return moments.statistics


def _effect(
    rung: str,
    found: RecoveredRounding,
    kept: bool,
    sqnr: tuple[float, float],
    samples: int,
    decided_by: int,
) -> RungEffect:
    """Return what a rung did; ``sqnr`` is that of the output before and after."""
    layers = found.layers.items()
    return RungEffect(
        rung=rung,
        changed=found.changed,
        kept=kept,
        before=sqnr[0],
        after=sqnr[1],
        samples=samples,
        decided_by=decided_by,
        layers={name: LayerRecovery(before=item.before, after=item.after) for name, item in layers},
        refused=found.refused,
        damped=tuple(name for name, item in layers if item.damped),
    )


def largest_values(calibration: Calibration, float_model: ir.Model) -> dict[str, float]:
    """Return the largest magnitude of each tensor that was measured, and of those with the same values."""
    calibration = with_moved_statistics(calibration, float_model.graph)
    return {name: float(max(-item.low, item.high)) for name, item in calibration.statistics.items()}


def free_scales(placement: Placement) -> dict[WeightSite, bool]:
    """Return of each weight whose integers are evenly spread whether its scales may be any."""
    return {
        site: isinstance(family, ScaledWeights)
        for site, family in placement.families.items()
        if family.is_even
    }
