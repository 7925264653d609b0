"""``export``: decide the parameters from the statistics, and write the quantized model."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from ptq_cli.amax.decide import resolve_method
from ptq_cli.calibration.provenance import loaded_run, source_bytes
from ptq_cli.core.documents import HIDDEN
from ptq_cli.core.errors import NothingGainedError, UsageError
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.formats import BYTE
from ptq_cli.core.memory import no_cycle_search
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.gate_result import ReportWarning
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.files.storing import check_stored, store_model
from ptq_cli.models.fixed_inputs import close_dimensions, closed_sizes
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.narrow_floats import narrow_floats
from ptq_cli.models.pair_operators import is_pair_node
from ptq_cli.pipeline.decide_model import decided_model
from ptq_cli.pipeline.evaluation.compared_kernels import require_right_kernels
from ptq_cli.pipeline.exported_file import report_layers, write_metadata
from ptq_cli.pipeline.given_weights import DecidedWeights, GivenWeights
from ptq_cli.pipeline.statement import (
    OF_FOLDER,
    UNFINISHED,
    PlacementFacts,
    Statement,
    statement_of,
    subjects,
)
from ptq_cli.pipeline.trial_models import CalibratedModel, decides_placement
from ptq_cli.placement.fastest_placement import LatencyPreference
from ptq_cli.placement.placed_graph import prove_powers_of_two
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import ONNXRUNTIME, QNN, Target
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.qdq.read.quantized_file import with_types
from ptq_cli.qdq.write.new_nodes import forget_pair_types
from ptq_cli.qdq.write.operator_forms import write_runtime_operators
from ptq_cli.qdq.write.padding import pad_apart, pad_channels
from ptq_cli.qdq.write.runtime_forms import (
    convert_types,
    dequantize_bytes,
    give_biases,
    shift_bytes,
    turn_gemms_of_blocks,
    write_clamps_of_blocks,
    write_table_lookups,
)
from ptq_cli.recipe.declaration import IN_FLOAT, RANGES, ROUND
from ptq_cli.recipe.recovery_rungs import recovery_rungs
from ptq_cli.recipe.sections import FLOAT16, LATENCY, RecoverySettings
from ptq_cli.recover.ladder.float_layers import WEIGHTS_MATTER_DB, reached_accuracy
from ptq_cli.recover.ladder.goal import goal_of
from ptq_cli.recover.quantized_layer import DecidedModel
from ptq_cli.recover.recover_rounding import recover_weights
from ptq_cli.recover.recovery_context import (
    RECOVER_STAGE,
    SPARE_DB,
    Interruptions,
    RecoveryContext,
    RecoveryData,
    escalates,
    open_recovery_data,
)
from ptq_cli.recover.recovery_effects import FloatLayers, RangesByEffect, ReachedAccuracy, Recovery
from ptq_cli.recover.rung_work import takes_long
from ptq_cli.report.text.result_warnings import fault_warnings, result_warnings
from ptq_cli.runtime.engine import KernelCounts
from ptq_cli.runtime.engine_registry import engine_of
from ptq_cli.runtime.qnn import QNN_HTP, compile_context
from ptq_cli.setup.output_checks import input_files, require_data_output, require_outputs
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.resumable import discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory, statement_path


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What ``ptq export`` wrote."""

    DERIVED: ClassVar[tuple[str, ...]] = ("layers",)

    output: Annotated[Path, "The quantized model's file."]
    bytes: Annotated[int, "Size of the quantized file."]
    float_bytes: Annotated[
        int,
        "Size of the float file: the one that was named, with "
        "its external data, if it is ONNX, and otherwise the prepared model.",
    ]
    target: Annotated[str, "The target's name."]
    amax: Annotated[str, "The method that decided the ranges, auto resolved."]
    plan: Annotated[Plan, HIDDEN]
    kernels: Annotated[
        KernelCounts | None,
        "What the runtime makes of it on this machine; None for a target whose runtime is not here, and "
        "where uncounted says why it was not asked.",
    ]
    widened: Annotated[
        Mapping[str, int], "Weights whose scale was widened so that their bias fits, with how many channels."
    ]
    uncounted: Annotated[str, "Why the runtime was not asked in passing; empty if it was."] = ""
    weight_amax: Annotated[str, "The method that decided the weights' ranges."] = "max"
    overridden: Annotated[
        tuple[str, ...],
        "Activations and weights that an override changed the settings of, in the plan's order.",
    ] = ()
    one_candidate: Annotated[
        Mapping[str, str],
        "Tensors whose method had only one candidate, so that it chose nothing, with the method.",
    ] = field(default_factory=dict)
    weights: Annotated[Mapping[str, int], "How many weights have which quantizer."] = field(
        default_factory=dict
    )
    activations: Annotated[Mapping[str, int], "How many activations have which quantizer."] = field(
        default_factory=dict
    )
    plain: Annotated[bool, "All are scaled, to the target's own integers."] = True
    latency: Annotated[
        LatencyPreference | None, "What was kept in float for speed; null if that was not asked for."
    ] = None
    never_run: Annotated[
        Mapping[str, str], "By its name, why a layer stays float that the calibration never ran."
    ] = field(default_factory=dict)
    ranges: Annotated[
        RangesByEffect | None, "What was chosen by its effect; None if it was not asked for."
    ] = None
    float_layers: Annotated[
        FloatLayers | None, "What was left in float for accuracy; None if it was not asked for."
    ] = None
    recovery: Annotated[Recovery | None, "What recovery did; None if it was not asked for."] = None
    accuracy: Annotated[
        ReachedAccuracy | None,
        "How near its outputs are to the float model's; None if that was not measured.",
    ] = None
    context: Annotated[Path | None, "What the HTP's compiler made of it; None if that was not asked for."] = (
        None
    )
    expected: Annotated[
        Mapping[str, float],
        "How many times as fast as float it is expected to be on one thread, by kind of processor.",
    ] = field(default_factory=dict)
    taken: Annotated[int, "Number of weights that were decided with another model of the same folder."] = 0
    warnings: Annotated[tuple[ReportWarning, ...], "About the file's size and where its work is done."] = ()

    @property
    def layers(self) -> tuple[LayerEntry, ...]:
        """Where each layer runs that could be quantized."""
        return report_layers(self.plan)


@dataclass(frozen=True)
class Exported:
    """A quantized model that is not written yet."""

    result: ExportResult
    model: StoredModel
    files: Mapping[Path, Content]
    statement: Statement


# ONNX Runtime optimizes as many in less than a second, and takes more than in proportion for more.
COUNTED_NODES = 4000


def run_export(
    request: Request,
    run: RunDirectory,
    output: Path | None = None,
    *,
    reset: bool = False,
    restart: bool = False,
    context: Path | None = None,
    progress: ProgressCallback = silent,
) -> ExportResult:
    """Quantize the calibrated model, and write it.

    The run's recipe is that of the run's own quantized model, so a model that goes elsewhere leaves it alone.

    With ``reset``, what earlier exports set in the run's recipe is left out; with ``restart``, what an
    interrupted recovery has found. ``context`` is where the HTP's
    compiler writes what it makes of the model.
    """
    with ExitStack() as undo:
        with loaded_run(request, run, reset=reset) as (resolved, calibration, float_model, graph):
            path = output or run.quantized_file(resolved.recipe)
            for file in (path, *([context] if context is not None else [])):
                require_outputs(run, input_files(resolved.recipe), file)
            if context is not None:
                _require_compiler(resolved.target)
            if restart:
                discard_recovery(run)
            data = open_recovery_data(resolved, calibration, graph, float_model, progress)
            source = CalibratedModel(
                resolved=resolved,
                calibration=calibration,
                float_model=float_model,
                graph=graph,
                run=run,
                output=path,
                progress=progress,
            )
            exported = make_export(source, data, keeps_on_interrupt=True)
            # The constants of a large model are in a file already, which an error has to take away again.
            undo.callback(exported.model.discard)
            # Above 2 GiB the graph as written has all weights as floats again, in memory: ptq verify runs it.
            if not exported.result.uncounted and not float_model.is_apart:
                dataset = data.dataset if data is not None else None
                require_right_kernels(exported.model, exported.result.plan, resolved, dataset, progress)
            if context is not None:
                progress(Progress("compiling for the HTP", 0, None))
                compiled = compile_context(exported.model, resolved.recipe.export.soc_model)
                result = replace(exported.result, context=context)
                exported = replace(exported, result=result, files={**exported.files, context: compiled})
        undo.pop_all()
    own = (run.quantized_file(resolved.recipe), run.quantized_model)
    is_own = os.path.realpath(path) in map(os.path.realpath, own)
    # The run's recipe belongs to the model in the run; an export elsewhere leaves both as they are.
    files = dict(exported.files)
    if not is_own:
        del files[run.recipe]
        if not any(known is not None and known.is_file() for known in (own[1], run.model_elsewhere())):
            files |= run.note_of(path)
    write_together(files)
    if is_own:
        run.discard_other_models(path)
    discard_recovery(run, exported.result)
    return exported.result


def discard_recovery(run: RunDirectory, result: ExportResult | None = None) -> None:
    """Remove what a recovery has chosen, unless Ctrl-C ended it: the same command then continues."""
    if result is None or (result.recovery is not None and not result.recovery.interrupted):
        discard_checkpoint(run.recovery_checkpoint)


@no_cycle_search()
def make_export(
    source: CalibratedModel,
    data: RecoveryData | None = None,
    *,
    decided: DecidedWeights | None = None,
    keeps_on_interrupt: bool = False,
) -> Exported:
    """Quantize a model with the parameters that a calibration decides; no output is written yet.

    It is recovered with ``data``; weights of ``decided`` are taken where they are known.
    """
    resolved, float_model = source.resolved, source.float_model
    recipe = resolved.recipe
    is_partly_quantized = any(is_pair_node(node) for node in every_node(source.graph.graph))
    if float_model.is_apart and recipe.model.path is not None:
        require_data_output(source.output, Path(recipe.model.path))
    context = _context(source, data, keeps_on_interrupt=keeps_on_interrupt) if data is not None else None
    exported = _exported(source, context, decided)
    if context is not None and decided is None and _needs_more(exported, context):
        exported.model.discard()
        # The first attempt took the graph.
        source, context = replace(source, graph=float_model.load()), replace(context, weights_first=False)
        exported = _exported(source, context, decided)
    if decides_placement(resolved, float_model):
        if exported.result.bytes > exported.result.float_bytes:
            exported.model.discard()
            again = replace(source, graph=float_model.load())  # The first attempt took the graph.
            exported = _exported(again, context, decided, in_float=True)
        _require_gain(exported)
    if is_partly_quantized:
        faults = tuple(target_faults(with_types(exported.model.load()), resolved.target))
        warnings = (*exported.result.warnings, *fault_warnings(faults, resolved.target.name))
        exported = replace(exported, result=replace(exported.result, warnings=warnings))
    return exported


def _needs_more(exported: Exported, context: RecoveryContext) -> bool:
    """Tell whether weights alone, which were chosen first, did not bring the outputs to the goal."""
    reached, is_open = exported.result.accuracy, context.weights_first and not context.interruptions.stopped
    return is_open and reached is not None and reached.sqnr_db < context.goal_db


def _exported(
    source: CalibratedModel,
    context: RecoveryContext | None,
    decided: DecidedWeights | None,
    *,
    in_float: bool = False,
) -> Exported:
    """Quantize a model, and choose its weights where that is asked for; ``in_float`` leaves it the layers."""
    recipe = source.resolved.recipe
    made = decided_model(source, context, in_float=in_float)
    given = GivenWeights()
    if decided is not None:
        made, given = decided.give(made, source.float_model)
    recovery = None
    # There may be nothing to learn from, or nothing left to choose.
    is_open = context is not None and not context.interruptions.stopped and (decided is None or given.left)
    if context is not None and is_open and _chooses_weights(made, recipe.recovery, source.progress):
        made, recovery = recover_weights(context, made, given.sites)
    again = recovery is not None and recovery.kept
    if made.bits is not None:
        after = recovery.effects if recovery is not None else ()
        recovery = Recovery((made.bits, *after), recovery is not None and recovery.interrupted)
    if decided is not None:
        decided.learn(made, source.float_model)
    made.write(made.model)
    accuracy = None
    # Above 2 GiB both models at once would take several times the memory that an export takes.
    if context is not None and not source.float_model.is_apart:
        accuracy = reached_accuracy(context, made, again=again)
        if made.float_layers is not None and accuracy.sqnr_db < context.wanted_db:
            made = replace(made, float_layers=replace(made.float_layers, reached=accuracy.sqnr_db))
    exported = _stored(source, context, made, recovery, taken=len(given.sites))
    return replace(exported, result=replace(exported.result, accuracy=accuracy))


def _require_gain(exported: Exported) -> None:
    result = exported.result
    if result.bytes <= result.float_bytes and (result.plan.weights or result.plan.activations):
        return
    exported.model.discard()
    sizes = f"{format_bytes(result.bytes)} instead of {format_bytes(result.float_bytes)}"
    raise NothingGainedError(
        f"int8 gains nothing for this model: with its small weights the file would be larger, {sizes}",
        hint="pass --prefer size or --prefer accuracy to write it all the same",
    )


def _context(source: CalibratedModel, data: RecoveryData, *, keeps_on_interrupt: bool) -> RecoveryContext:
    resolved = source.resolved
    is_resumable = keeps_on_interrupt and data.dataset.is_resumable
    return RecoveryContext(
        float_model=source.float_model,
        calibration=source.calibration,
        data=data,
        target=resolved.target,
        machine=resolved.machine,
        folder=source.output.parent,
        progress=source.progress,
        interruptions=Interruptions(source.progress, asked=keeps_on_interrupt),
        checkpoint=source.run.recovery_checkpoint if is_resumable else None,
        every=resolved.recipe.runtime.checkpoint_every,
        goal_db=goal_of(resolved.recipe),
        weights_first=escalates(resolved) and (resolved.recipe.weights.bits or BYTE) < BYTE,
    )


def _stored(
    source: CalibratedModel,
    context: RecoveryContext | None,
    made: DecidedModel,
    recovery: Recovery | None,
    *,
    taken: int,
) -> Exported:
    """The bytes of a quantized model whose integers are written into its graph."""
    resolved, calibration, path, run = source.resolved, source.calibration, source.output, source.run
    recipe, target, asked = resolved.recipe, resolved.target, tensor_recipe(resolved.recipe)
    _finish(made, target)
    if target.static_shapes:
        sizes = closed_sizes(made.model, recipe.model.input_shape, target.name)
        close_dimensions(made.model, sizes)
    method = resolve_method(asked.amax, has_histogram=calibration.provenance.method == "histogram")
    write_metadata(made, asked, calibration, recovery, method, target)
    forget_pair_types(made.model)
    stored = store_model(made.model, path.parent, path.name, made.begun)
    with ThreadPoolExecutor(1, "kernels") as pool:
        kernels = pool.submit(_kernels, stored, made, target)
        check_stored(stored, made.model, "the quantized model")
    placed_by = source.placed_by
    if placed_by is None:
        brought = source_bytes(recipe.model.path, calibration.provenance.settings, run)
        shapes = context.data.one_size if context is not None else None
        float_bytes = brought or source.float_model.size
        placed_by = PlacementFacts(float_bytes=float_bytes, sample_shapes=shapes)
    result = _result(source, made, (placed_by.float_bytes, stored.size), method, kernels.result())
    result = replace(result, recovery=recovery, taken=taken)
    by_runs = list(_decided_by_runs(made, recovery))
    if context is not None and context.interruptions.stopped:
        by_runs.append(UNFINISHED)
    if taken:
        by_runs.append(OF_FOLDER)
    about = subjects(stored, path.name)
    statement = statement_of(recipe, run, calibration, placed_by, by_runs, about)
    files = {**stored.files(path), run.recipe: statement.predicate.recipe.text.encode()}
    return Exported(result, stored, {**files, statement_path(path): statement.content()}, statement)


def _decided_by_runs(made: DecidedModel, recovery: Recovery | None) -> Iterator[str]:
    """Yield what statistics and recipe alone do not decide of a file."""
    if made.latency is not None:
        yield LATENCY
    if has_forms := made.forms is not None and bool(made.forms.forms):
        yield "forms"
    if made.ranges is not None:
        yield RANGES
    # The last step leaves all layers in float, and tells of none.
    if made.float_layers is not None or (made.replaced and not has_forms and made.ranges is None):
        yield IN_FLOAT
    if recovery is not None:
        yield from (effect.rung for effect in recovery.effects)


def _chooses_weights(made: DecidedModel, settings: RecoverySettings, progress: ProgressCallback) -> bool:
    """Whether weights are chosen again; for ``all`` not where that takes minutes and wins little.

    Where nobody asked for it, only if they cost an output that is not good enough. With bytes it has to be
    quick, too: those win less.
    """
    found, forms, is_asked = made.float_layers, made.forms, ROUND in recovery_rungs(settings)
    # What is near the goal on these samples may be below it on others.
    is_good = forms is not None and made.reached >= forms.goal_db + SPARE_DB
    has_bytes = all(site.format.bits >= BYTE for site in made.plan.weights)
    lose = not has_bytes or found is None or found.weights_lose >= WEIGHTS_MATTER_DB
    matters = not is_good and lose
    if not is_asked:
        return forms is not None and matters and not (has_bytes and takes_long(made.model, made.plan))
    if ROUND in settings.rungs or matters or not has_bytes or not takes_long(made.model, made.plan):
        return True
    lost = found.weights_lose if found is not None else 0.0
    why = f"cost the outputs {lost:.1f} dB" if lost else "are good enough"
    note = f"{ROUND} left out: weights of 8 bits {why}, and choosing them takes minutes"
    progress(Progress(RECOVER_STAGE, 0, None, note))
    return False


def _require_compiler(target: Target) -> None:
    if target.runtime != QNN:
        raise UsageError(
            f"--context is for the target qnn, and the target is '{target.name}'",
            hint="leave --context out, or pass --target qnn",
        )
    QNN_HTP.require()


def _finish(made: DecidedModel, target: Target) -> None:
    """Write what the runtime is faster with: nothing compares the graph with the float one any more."""
    model = made.model
    prove_powers_of_two(model, made.placement, made.plan)
    write_runtime_operators(model, made.plan)
    write_table_lookups(model)
    write_clamps_of_blocks(model)
    in_blocks = {site.node for site in made.plan.weights if site.block_kernel}
    turn_gemms_of_blocks(model, in_blocks if target.runtime == ONNXRUNTIME else ())
    pad_channels(model, target.weight.channel_multiple, target.activation.channel_multiple)
    pad_apart(model, target)
    give_biases(model, target)
    if target.activation.symmetric and target.activation.integers.signed:
        shift_bytes(model)
    if target.activation.dequantized_bytes:
        dequantize_bytes(model)
    if target.activation.converted:
        convert_types(model)
    if made.placement.float_type == FLOAT16:
        narrow_floats(model)


def _result(
    source: CalibratedModel,
    made: DecidedModel,
    sizes: tuple[int, int],
    method: str,
    kernels: KernelCounts | None,
) -> ExportResult:
    """The result; ``sizes`` are those of the float file and of the quantized one."""
    target, asked = source.resolved.target, tensor_recipe(source.resolved.recipe)
    placement = made.placement
    return ExportResult(
        output=source.output,
        bytes=sizes[1],
        float_bytes=sizes[0],
        target=target.name,
        amax=method,
        plan=made.plan,
        kernels=kernels,
        uncounted=_uncounted(made) if kernels is None and engine_of(target) is not None else "",
        widened=made.parameters.widened,
        weight_amax=asked.amax.weight_method,
        overridden=_asked_for(made),
        one_candidate=made.unsearched,
        weights=placement.weight_counts,
        activations=placement.activation_counts,
        plain=placement.is_plain,
        latency=made.latency,
        expected=made.expected,
        never_run={
            layer.name: placement.never_run[layer.name]
            for layer in placement.target_plan.layers
            if layer.quantized and layer.name in placement.never_run
        },
        ranges=made.ranges,
        float_layers=made.float_layers,
        warnings=result_warnings(sizes, report_layers(made.plan), made.work),
    )


def _asked_for(made: DecidedModel) -> tuple[str, ...]:
    """Return the tensors whose settings the recipe's overrides have changed, and not what was chosen."""
    found, bits = made.float_layers, made.bits
    layers = {
        *(found.layers + found.more_bits if found is not None else ()),
        *(bits.more_bits if bits else ()),
    }
    chosen = {site.tensor for site in made.plan.weights if site.node in layers}
    chosen.update(found.wide if found is not None else ())
    return tuple(name for name in made.placement.settings.overridden if name not in chosen)


def _kernels(stored: StoredModel, made: DecidedModel, target: Target) -> KernelCounts | None:
    engine = engine_of(target)
    return None if engine is None or _uncounted(made) else engine.count_kernels(stored)


def _uncounted(made: DecidedModel) -> str:
    """Why the runtime is not asked in passing what it makes of a graph, or an empty string."""
    nodes = made.model.graph.num_nodes()
    if nodes > COUNTED_NODES:
        return f"the graph has {nodes:,} nodes"
    if made.begun is not None and any(site.block_kernel for site in made.plan.weights):
        return "the runtime would load a copy of all the weights"
    return ""
