"""The weights of a quantized model are chosen again, layer by layer, behind the layers that are done."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.stages.cut_stages import Stage, cut_stages
from ptq_cli.recovery.layers.layer_rows import LayerRows
from ptq_cli.recovery.layers.quantized_layer import QuantizedLayer, quantized_layers, replace_constants
from ptq_cli.recovery.layers.residual_input import residual_input
from ptq_cli.recovery.layers.solve_layer import LayerData, solve_layer
from ptq_cli.recovery.layers.solved_layer import SolvedLayer
from ptq_cli.recovery.samples.output_error import output_sqnr
from ptq_cli.recovery.samples.recovery_samples import RecoverySamples
from ptq_cli.recovery.samples.sample_stream import SampleStream, last_readers
from ptq_cli.recovery.samples.shelf import IN_MEMORY, Shelf

ROWS = 8192
"""Of a layer with few inputs."""
ROWS_PER_INPUT = 8
"""Of one with many. Eight times as many rows gave no better result; see docs/recovery.md."""
DECIDED = 4
"""One for so many rows is enough to decide by."""


@dataclass(frozen=True, kw_only=True)
class RecoveredRounding:
    """What a pass did.

    Attributes:
        layers: by name, what was chosen for each.
        refused: why the others are as they were.
        before, after: SQNR of the model's outputs on the samples to decide by, in dB.
        constants: new values of the quantized graph's initializers, by name.
    """

    layers: Mapping[str, SolvedLayer]
    refused: Mapping[str, str]
    before: float
    after: float
    constants: Mapping[str, Array] = field(repr=False)

    @property
    def changed(self) -> bool:
        """Whether any layer has another constant than before."""
        return any(item.changed for item in self.layers.values())


def recover_rounding(
    twins: TwinGraphs,
    plan: Plan,
    free: Mapping[WeightSite, bool],
    samples: RecoverySamples,
    *,
    folder: Path,
    memory: int = IN_MEMORY,
    threads: int = 1,
    done: Callable[[int, int], None] = lambda _done, _total: None,
) -> RecoveredRounding:
    """Return better integers, scales and biases for a quantized model's layers; the graphs stay as they are.

    Three streams of tensors go through the model: that of the float model, that of the quantized one with the
    layers that are done, and, of the samples to decide by, that of the quantized one as it was.

    Args:
        twins: the float and the quantized model.
        plan: of the quantized one.
        free: of each weight, whether its scales may change; see ``quantized_layers``.
        samples: to learn from, and to decide by.
        folder: where tensors wait that do not fit into memory.
        memory: bytes of tensors that wait in memory.
        threads: the result does not depend on them.
        done: is told after each layer how many are done, of how many.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
        OutputFileError: there is no room for the tensors.
    """
    layers, refused = quantized_layers(twins, plan, free)
    stages = cut_stages(twins, {layer.name for layer in plan.layers if layer.quantized})
    solved: dict[str, SolvedLayer] = {}
    passed = 0
    with ThreadPoolExecutor(threads, "recover") as pool:
        walk = _Walk(twins, stages, samples, Shelf(folder, limit=memory), pool, threads)
        for index, stage in enumerate(stages):
            layer = next((layers[name] for name in stage.nodes if name in layers), None)
            found = walk.through(index, stage, layer)
            if layer is None or found is None:
                continue
            if isinstance(found, str):
                refused[layer.name] = found
            else:
                solved[layer.name] = found
            passed += 1
            done(passed, len(layers))
    before, after = walk.sqnr()
    constants = {name: array for item in solved.values() for name, array in item.constants.items()}
    return RecoveredRounding(layers=solved, refused=refused, before=before, after=after, constants=constants)


class _Walk:
    """The three streams, on their way through the stages."""

    def __init__(
        self,
        twins: TwinGraphs,
        stages: Sequence[Stage],
        samples: RecoverySamples,
        shelf: Shelf,
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> None:
        self._twins, self._pool, self._threads = twins, pool, threads
        self._fit, self._decide = len(samples.fit), len(samples.decide)
        self._outputs = [value.name or "" for value in twins.float_model.graph.outputs]
        self._dropped = last_readers(stages, self._outputs)
        sizes, aside = ([_size(piece) for piece in part] for part in (samples.fit, samples.decide))
        self._samples, self._set_aside = sum(sizes), sum(aside)
        self._firsts = [sum(own[:piece]) for own in (sizes, aside) for piece in range(len(own))]
        pieces = (*samples.fit, *samples.decide)
        self._floating = SampleStream(twins.pairs, pieces, shelf)
        self._quantized = SampleStream(twins.pairs, pieces, shelf)
        self._nearest = SampleStream(twins.pairs, samples.decide, shelf)

    def through(self, index: int, stage: Stage, layer: QuantizedLayer | None) -> SolvedLayer | str | None:
        """Take all streams through a stage; return what was chosen for its layer, or why nothing was."""
        form, solved = stage.quantized or stage.floating, None
        model = form.model
        self._nearest.run(form, model, self._pool)
        if layer is None:
            self._floating.run(stage.floating, stage.floating.model, self._pool)
        else:
            data = self._data(stage, layer)
            solved = solve_layer(self._twins, layer, data, threads=self._threads)
            if isinstance(solved, SolvedLayer):
                model = _changed(model, solved.constants)
        self._quantized.run(form, model, self._pool)
        for stream in (self._floating, self._quantized, self._nearest):
            stream.drop(self._dropped[index])
        return solved

    def sqnr(self) -> tuple[float, float]:
        """Return the SQNR of the outputs on the samples to decide by, as the model was and as it is."""
        pairs = [(piece, self._fit + piece) for piece in range(self._decide)]
        wanted = [[self._floating.floats(name, own) for name in self._outputs] for _, own in pairs]
        before = [[self._nearest.floats(name, piece) for name in self._outputs] for piece, _ in pairs]
        after = [[self._quantized.floats(name, own) for name in self._outputs] for _, own in pairs]
        return output_sqnr(wanted, before), output_sqnr(wanted, after)

    def _data(self, stage: Stage, layer: QuantizedLayer) -> LayerData:
        """Run the float model's stage; collect what its layer should make, and reads in the quantized one."""
        wanted = max(ROWS, ROWS_PER_INPUT * len(layer.geometry.block))
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

        floating = stage.floating
        self._floating.run(floating, floating.model, self._pool, tap=layer.makes, tapped=collect)
        return data

    def _lost(self, layer: QuantizedLayer) -> Callable[[int, Array], Array]:
        """Return what adds to a layer's output what another input of the Add behind it has lost so far."""
        other = residual_input(self._twins.float_model, layer)
        if not (self._floating.has(other) and self._quantized.has(other)):
            return lambda _piece, made: made

        def lost(piece: int, made: Array) -> Array:
            wanted = self._floating.floats(other, piece).astype(np.float32)
            if wanted.shape != made.shape:
                return made
            return made.astype(np.float32) + wanted - self._quantized.floats(other, piece).astype(np.float32)

        return lost

    def _reader(self, stage: Stage, layer: QuantizedLayer) -> Callable[[int], Array]:
        """Return what gives a layer's input in the quantized model: its integers where it has them."""
        if layer.parameters is not None:
            return lambda piece: self._quantized.integers(layer.reads, piece)
        form = stage.quantized or stage.floating
        if layer.reads in stage.inputs:
            return lambda piece: self._quantized.floats(layer.reads, piece)
        found: dict[int, Array] = {}
        self._quantized.run(
            form, form.model, self._pool, tap=layer.reads, tapped=found.__setitem__, keep=False
        )
        return found.__getitem__


def _size(piece: Mapping[str, Array]) -> int:
    return max((len(array) for array in piece.values() if array.ndim), default=1)


def _changed(model: StoredModel, constants: Mapping[str, Array]) -> StoredModel:
    loaded = model.load()
    replace_constants(loaded, constants)
    return serialize(loaded)
