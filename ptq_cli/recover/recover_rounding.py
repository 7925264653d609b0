"""The rung ``round``: weights are chosen again, layer by layer, behind the layers that are done."""

import gc
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.memory import give_back_held_blocks
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel, constants_of, serialize
from ptq_cli.models.files.storing import mapped_model
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import Stage, cut_stages
from ptq_cli.qdq.write.constant_pairs import NamesBySite, replace_constants, replaced_arrays
from ptq_cli.qdq.write.site_parameters import DecidedConstants, Parameters
from ptq_cli.recipe.declaration import ROUND
from ptq_cli.recover.block_layer import SharedReads, solve_blocks
from ptq_cli.recover.interrupted_recovery import RecoveryCheckpoint, rung_identity
from ptq_cli.recover.layer_geometry import LayerData, LayerRows
from ptq_cli.recover.layer_state import SolvedLayer, solve_layer
from ptq_cli.recover.output_noise import Noise, noise_of, sqnr_of
from ptq_cli.recover.quantized_layer import (
    DecidedModel,
    QuantizedLayer,
    quantized_layers,
    residual_input,
    with_opset,
)
from ptq_cli.recover.recovery_context import RecoveryContext, RecoverySamples, samples_in
from ptq_cli.recover.recovery_effects import LayerRecovery, Recovery, RungEffect
from ptq_cli.recover.rung_work import RungWork, in_minutes, passing_work, search_work, seconds_of
from ptq_cli.recover.sample_stream import IN_MEMORY, SampleStream, SpillStore, last_readers

A_MINUTE = 60.0
MEMORY_SHARE = 2  # one part of so many of the allowed memory is for tensors that wait
_ROWS = 8192  # of a layer with few inputs
ROWS_PER_INPUT = 8  # of one with many; eight times as many gave no better result, see docs/recovery.md
STREAMS = 3  # how often a sample goes through a stage: of the float model, and twice of the quantized one
DECIDED = 4  # one row for so many that are learned from is enough to decide by


@dataclass(frozen=True, kw_only=True)
class RecoveredRounding:
    """What a pass did.

    Attributes:
        layers: by name, what was chosen for each.
        refused: why the others are as they were.
        before, after: SQNR of the model's outputs on the samples that judge, in dB.
    """

    layers: Mapping[str, SolvedLayer]
    refused: Mapping[str, str]
    before: float
    after: float
    decided: DecidedConstants = field(repr=False)

    @property
    def changed(self) -> bool:
        """Whether any layer has another constant than before."""
        return any(item.changed for item in self.layers.values())


def recover_weights(
    context: RecoveryContext, made: DecidedModel, but: Collection[WeightSite] = ()
) -> tuple[DecidedModel, Recovery]:
    """Return a model whose weights are chosen again where its outputs gain from that, and what was done.

    The weights ``but`` these are chosen: they stay as they are.
    """
    data, parameters = context.data, made.parameters
    kept = tuple(site for site in made.plan.weights if site not in but)
    open_model = replace(made, plan=replace(made.plan, weights=kept))
    stored = mapped_model(context.float_model, context.folder)
    float_graph = stored.load()
    layers, _ = quantized_layers(float_graph, open_model)
    work = round_work(float_graph, layers, parameters, data.samples[0])
    seconds = seconds_of(sum(work.values()), context.machine.threads, A_MINUTE)
    if seconds:
        context.tell(f"choosing the weights takes about {in_minutes(seconds)}; --recover none leaves it out")
    checkpoint = None
    if context.checkpoint is not None:
        identity = rung_identity(ROUND, context.calibration, parameters)
        checkpoint = RecoveryCheckpoint(context.checkpoint, context.every, identity, context.progress)
    # Stages of the model run as the whole does, so they are cut out of it as it is written.
    model = with_opset(stored.load(), made.placement.opset, "the float model")
    places = made.write(model)
    twins = TwinGraphs(float_graph, model)
    del model, float_graph
    interruptions = context.interruptions
    with interruptions.rung(", and the same command continues" if checkpoint is not None else "") as stop:
        found = recover_rounding(context, open_model, (twins, places), stop, checkpoint)
    if checkpoint is not None and interruptions.stopped:
        checkpoint.note(found.layers, now=True)
    effect = _effect(found, *data.samples[1:])
    if effect.kept:
        made = replace(made, parameters=parameters.changed(found.decided))
    return made, Recovery((effect,), interrupted=interruptions.stopped)


def _effect(found: RecoveredRounding, samples: int, decided_by: int) -> RungEffect:
    layers = found.layers.items()
    return RungEffect(
        rung=ROUND,
        changed=found.changed,
        kept=found.changed and found.after > found.before,
        before=found.before,
        after=found.after,
        samples=samples,
        decided_by=decided_by,
        layers={name: LayerRecovery(before=item.before, after=item.after) for name, item in layers},
        refused=found.refused,
        damped=tuple(name for name, item in layers if item.damped),
    )


def recover_rounding(
    context: RecoveryContext,
    made: DecidedModel,
    written: tuple[TwinGraphs, NamesBySite],
    stop: Callable[[], bool],
    checkpoint: RecoveryCheckpoint | None,
) -> RecoveredRounding:
    """Return better integers, scales and biases for a quantized model's layers.

    Three streams of tensors go through the model, as it is ``written``: that of the float model, that of the
    quantized one with the layers that are done, and, of the samples that judge, that of the quantized one as
    it was. The result does not depend on the threads. Once ``stop`` says so, the layers that are left stay as
    they are. Layers of ``checkpoint`` are taken from there.
    """
    (twins, _), parameters, plan = written, made.parameters, made.plan
    layers, refused = quantized_layers(twins.float_model, made)
    known = checkpoint.earlier(layers, parameters) if checkpoint is not None else {}
    stages = deque(cut_stages(twins, {layer.name for layer in plan.layers if layer.quantized}))
    # Each stage has its own constants. Graphs of stages hold the same arrays until a search finds them.
    _forget_constants(twins.quantized_model)
    gc.collect()
    give_back_held_blocks()
    solved: dict[str, SolvedLayer] = {}
    work = round_work(twins.float_model, layers, parameters, context.data.samples[0], known)
    told = RungWork(ROUND, work, context.progress)
    with ThreadPoolExecutor(context.machine.threads, "recover") as pool:
        walk = _Walk(context, parameters, written, stages, pool)
        for index in range(len(stages)):
            stage = stages.popleft()  # Its constants go with it.
            layer = next((layers[name] for name in stage.nodes if name in layers and not stop()), None)
            found = walk.through(index, stage, layer, known)
            if layer is None or found is None:
                continue
            if isinstance(found, str):
                refused[layer.name] = found
            else:
                solved[layer.name] = found
                if checkpoint is not None:
                    checkpoint.note(solved)
            told.layer_done(layer.name, solved.values())
    before, after = walk.sqnr()
    decided = DecidedConstants()
    for item in solved.values():
        decided = decided.changed(item.decided)
    return RecoveredRounding(layers=solved, refused=refused, before=before, after=after, decided=decided)


def round_work(
    float_model: ir.Model,
    layers: Mapping[str, QuantizedLayer],
    parameters: Parameters,
    samples: RecoverySamples,
    known: Collection[str] = (),
) -> dict[str, float]:
    """Return by name the work of each layer, its share of the runs of both models included.

    Of ``known`` layers nothing is chosen any more.
    """
    pieces = samples.pieces
    shapes = {name: array.shape for name, array in pieces[0].items()}
    counted = multiply_accumulates(float_model, shapes).counts
    often = STREAMS * sum(map(samples_in, pieces)) / samples_in(pieces[0])
    run = {name: often * (counted.get(name) or 0) for name in layers}
    return {
        name: passing_work(run[name])
        if name in known
        else search_work(item, parameters, rows_wanted(item), run[name])
        for name, item in layers.items()
    }


def rows_wanted(layer: QuantizedLayer) -> int:
    """Largest number of rows of data that a layer is fitted to."""
    return max(_ROWS, ROWS_PER_INPUT * len(layer.geometry.block))


class _Walk:
    """The three streams, on their way through the stages."""

    def __init__(
        self,
        context: RecoveryContext,
        parameters: Parameters,
        written: tuple[TwinGraphs, NamesBySite],
        stages: Sequence[Stage],
        pool: ThreadPoolExecutor,
    ) -> None:
        (twins, self._places), samples, machine = written, context.data.samples[0], context.machine
        self._float_model, self._parameters = twins.float_model, parameters
        self._threads, self._shared = machine.threads, SharedReads()
        self._fit, self._first_judged, pieces = len(samples.fit), samples.first_judged, samples.pieces
        self._count = len(pieces)
        self._outputs = [value.name or "" for value in twins.float_model.graph.outputs]
        self._dropped = last_readers(stages, self._outputs)
        self._read = {name for stage in stages for name in stage.inputs}
        sizes, aside = ([samples_in(piece) for piece in part] for part in (samples.fit, samples.decide))
        self._samples, self._set_aside = sum(sizes), sum(aside)
        self._firsts = [sum(own[:piece]) for own in (sizes, aside) for piece in range(len(own))]
        judged = {*self._outputs} - self._read
        limit = machine.memory // MEMORY_SHARE if machine.memory is not None else IN_MEMORY
        store = SpillStore(context.folder, limit=limit)
        self._floating = SampleStream(twins.pairs, pieces, store, pool, judged, self._first_judged)
        self._quantized = SampleStream(twins.pairs, pieces, store, pool, judged, self._first_judged)
        self._nearest = SampleStream(twins.pairs, samples.judge, store, pool, judged)

    def through(
        self, index: int, stage: Stage, layer: QuantizedLayer | None, known: Mapping[str, SolvedLayer]
    ) -> SolvedLayer | str | None:
        """Take all streams through a stage; return what was chosen for its layer, or why nothing was."""
        form = stage.quantized or stage.floating
        solved: SolvedLayer | str | None = known.get(layer.name) if layer is not None else None
        model: StoredModel | None = None
        # With the constants of rounding to nearest, before they are changed below, to judge the whole by.
        last = self._dropped[index]
        self._nearest.run(form, last=last)
        # Outputs that nothing reads only judge, and those of a language model are the largest tensors of all.
        is_open = layer is not None and solved is None
        has_targets = layer is not None and is_open and not layer.is_table
        first = self._first_judged if not has_targets and self._read.isdisjoint(stage.outputs) else 0
        if not has_targets:
            self._floating.run(stage.floating, first=first, last=last)
        if layer is not None and is_open:
            solved = self._solved(layer, self._data(stage, layer, last))
        if isinstance(solved, SolvedLayer):
            model = _changed(form.model, replaced_arrays(solved.decided, self._places))
        # After the layer is solved: what follows reads what the recovered layer gives.
        self._quantized.run(form, model, first=first, last=last)
        return solved

    def _solved(self, layer: QuantizedLayer, data: LayerData) -> SolvedLayer | str:
        subject = (self._float_model, self._parameters, layer)
        if layer.is_by_blocks:
            return solve_blocks(*subject, data, self._shared, threads=self._threads)
        return solve_layer(*subject, data, threads=self._threads)

    def sqnr(self) -> tuple[float, float]:
        """Return the SQNR of the outputs on the samples that judge, as the model was and as it is."""
        noise: tuple[list[Noise], list[Noise]] = ([], [])
        for own in range(self._first_judged, self._count):  # Logits of all of them are too many to hold.
            piece = own - self._first_judged
            wanted = [self._floating.floats(name, own) for name in self._outputs]
            for found, (stream, number) in zip(
                noise, ((self._nearest, piece), (self._quantized, own)), strict=True
            ):
                found.append(noise_of(wanted, [stream.floats(name, number) for name in self._outputs]))
        return sqnr_of(noise[0]), sqnr_of(noise[1])

    def _data(self, stage: Stage, layer: QuantizedLayer, last: Collection[str]) -> LayerData:
        """Run the float model's stage; collect what its layer should make, and reads in the quantized one."""
        # A layer of many inputs needs more rows than these, or its moments are singular.
        wanted = rows_wanted(layer)
        outside = int(layer.parameters.zero_point) if layer.parameters is not None else 0
        data = LayerData(
            learn=LayerRows(layer.geometry, wanted=wanted, samples=self._samples, outside=outside),
            decide=LayerRows(
                layer.geometry, wanted=wanted // DECIDED, samples=self._set_aside, outside=outside
            ),
        )
        read, lost = self._reader(stage, layer), self._lost(layer)

        def collect(piece: int, made: Array) -> None:
            rows = data.learn if piece < self._fit else data.decide
            rows.add(piece, read(piece), lost(piece, made), first=self._firsts[piece])

        if layer.is_table:
            for piece in range(self._count):
                rows = data.learn if piece < self._fit else data.decide
                rows.add(piece, read(piece), read(piece), first=self._firsts[piece])
            return data
        self._floating.run(stage.floating, tap=(layer.makes, collect), last=last)
        return data

    def _lost(self, layer: QuantizedLayer) -> Callable[[int, Array], Array]:
        """Return a function that adds the error so far of the other input of an Add to a layer's output."""
        other = residual_input(self._float_model, layer)
        if not (self._floating.has(other) and self._quantized.has(other)):
            return lambda _piece, made: made

        def lost(piece: int, made: Array) -> Array:
            wanted = self._floating.floats(other, piece).astype(np.float32)
            if wanted.shape != made.shape:
                return made
            return made.astype(np.float32) + wanted - self._quantized.floats(other, piece).astype(np.float32)

        return lost

    def _reader(self, stage: Stage, layer: QuantizedLayer) -> Callable[[int], Array]:
        """Return a function of a piece: the layer's input in the quantized model, integers if it has them."""
        if layer.parameters is not None:
            return lambda piece: self._quantized.integers(layer.reads, piece)
        form = stage.quantized or stage.floating
        if layer.reads in stage.inputs:
            return lambda piece: self._quantized.floats(layer.reads, piece)
        found: dict[int, Array] = {}
        self._quantized.run(form, tap=(layer.reads, found.__setitem__), keep=False)
        return found.__getitem__


def _changed(model: StoredModel, constants: Mapping[str, Array]) -> StoredModel:
    loaded = model.load()
    replace_constants(loaded, constants)
    changed = serialize(loaded)
    _forget_constants(loaded)
    return changed


def _forget_constants(model: ir.Model) -> None:
    """Release constants: a graph refers to itself, and waits for a search that is off during an export."""
    for value in constants_of(model):
        value.const_value = None
