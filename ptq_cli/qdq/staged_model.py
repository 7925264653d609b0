"""A float model and its quantized twin cut into stages, each of which can run in either form.

Both are cut at the same tensors: where the quantized one has a pair of Q and DQ, where several stages read a
tensor, and behind each operator with quantized constants. A stage is what makes such a tensor from others. It
has the nodes of the float graph in its floating form; in its quantized form it reads and makes integers where
the quantized graph does, so that ONNX Runtime fuses it into the very kernels of the whole model.

A model with one layer changed is the same before that layer: only what comes behind it is run again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters, dequantize, fake_quantize, quantize
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.pair_operators import CLAMPS, DEQUANTIZE
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.qdq.read.twin_graphs import ActivationPair, TwinGraphs, part_of, readers_by_value, values_read
from ptq_cli.runtime.session import PREPACKED, Session

# Parameters of a tensor, or what puts its values on a grid that follows from them.
TensorGrid = QuantParameters | Callable[[Array], Array]


@dataclass(frozen=True)
class Port:
    """A tensor of the float model that passes from stage to stage as a graph's value of some name."""

    tensor: str
    integers: bool
    name: str


@dataclass(frozen=True)
class Form:
    """A stage as a model of its own."""

    model: StoredModel
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Nodes that make a tensor, or several, from others: their names are those of the float model.

    Attributes:
        layer: the node whose quantization it is; empty if it has none of its own.
        quantized: as it is in the quantized model; None if that is the same.
    """

    nodes: tuple[str, ...]
    layer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    floating: Form
    quantized: Form | None


Readers = Mapping[ir.Value, Sequence[ir.Node]]


def cut_stages(
    twins: TwinGraphs, integer: Collection[str], further: Collection[str] = ()
) -> tuple[Stage, ...]:
    """Return the stages of a model, in order; run one after the other they are the model.

    Both forms are cut at the ``further`` tensors of the float model, too; ``integer`` layers compute on
    integers.
    """
    float_graph, graph = twins.float_model.graph, twins.quantized_model.graph
    kept = {node.name or "": node for node in graph if node not in twins.inserted}
    if list(kept) != [node.name for node in float_graph]:
        raise InvalidOnnxError(
            "the quantized model does not have the operators of the float model",
            hint="run ptq export again, and pass the model that it wrote",
        )
    readers = readers_by_value(float_graph)
    floats = _FormMaker(twins.float_model, readers)
    quantized = _FormMaker(twins.quantized_model, twins.readers, twins.inserted, twins.pairs.values())
    weighted = {constant.node.name for constant in twins.constants} | twins.containers
    stages = []
    for nodes in _Grouping(twins, readers, further).groups():
        names = [node.name or "" for node in nodes]
        twin_nodes = [kept[name] for name in names]
        floating, other = floats.form(nodes), quantized.form(twin_nodes)
        if not floating.outputs:
            continue  # Nobody reads it.
        layers = [*(name for name in names if name in weighted), *(name for name in names if name in integer)]
        differs = (
            not weighted.isdisjoint(names)
            or any(port.integers for port in (*other.inputs, *other.outputs))
            or any(node.op_type != twin.op_type for node, twin in zip(nodes, twin_nodes, strict=True))
        )
        stages.append(_stage(names, next(iter(layers), ""), floating, other if differs else None))
    return tuple(stages)


def joined_stages(model: ir.Model, stages: Sequence[Stage], together: int) -> tuple[Stage, ...]:
    """Return so many stages in a row as one each, in their floating form: without cuts they run faster."""
    maker = _FormMaker(model, readers_by_value(model.graph))
    nodes = {node.name: node for node in model.graph}
    found = []
    for first in range(0, len(stages), together):
        names = tuple(name for stage in stages[first : first + together] for name in stage.nodes)
        found.append(_stage(names, "", maker.form([nodes[name] for name in names]), None))
    return tuple(found)


def _stage(names: Sequence[str], layer: str, floating: Form, quantized: Form | None) -> Stage:
    return Stage(
        nodes=tuple(names),
        layer=layer,
        inputs=tuple(dict.fromkeys(port.tensor for port in floating.inputs)),
        outputs=tuple(dict.fromkeys(port.tensor for port in floating.outputs)),
        floating=floating,
        quantized=quantized,
    )


class _Grouping:
    """Groups the nodes of the float graph into stages."""

    def __init__(self, twins: TwinGraphs, readers: Readers, further: Collection[str]) -> None:
        self._graph, self._readers = twins.float_model.graph, readers
        self._cut = {*twins.pairs, *further, *(value.name for value in self._graph.outputs)}
        self._weighted = {constant.node.name for constant in twins.constants} | twins.containers
        # No two layers with weights in one stage: they could not be told apart.
        for node in self._graph:
            if node.name in self._weighted:
                self._cut.update(value.name for value in self._tail(node).outputs)

    def groups(self) -> list[list[ir.Node]]:
        """Return the nodes of each stage, in order."""
        root_of: dict[ir.Node, ir.Node] = {}
        for node in reversed(self._graph):
            stages = {root_of[reader] for value in node.outputs for reader in self._readers.get(value, ())}
            is_root = len(stages) != 1 or any(value.name in self._cut for value in node.outputs)
            root_of[node] = node if is_root else stages.pop()
        groups: dict[ir.Node, list[ir.Node]] = {}
        for node in self._graph:
            groups.setdefault(root_of[node], []).append(node)
        # A stage stands where its last node does: then everything that it reads was made before.
        return [groups[node] for node in self._graph if node in groups]

    def _tail(self, node: ir.Node) -> ir.Node:
        """Return the node that ends an operator: its bias's Add or its clamp, where it is fused with them."""
        for op_types in (("Add",), CLAMPS):
            readers = self._readers.get(node.outputs[0], ())
            if len(readers) != 1 or node.outputs[0].name in self._cut:
                continue
            (reader,) = readers
            if reader.op_type in op_types and (reader.op_type in CLAMPS or reader.name in self._weighted):
                node = reader
        return node


class _FormMaker:
    """Makes models of stages, in the form of one of the two graphs."""

    def __init__(
        self,
        model: ir.Model,
        readers: Readers,
        inserted: Collection[ir.Node] = (),
        pairs: Collection[ActivationPair] = (),
    ) -> None:
        self._model, self._readers, self._inserted = model, readers, inserted
        self._order = {node: index for index, node in enumerate(model.graph)}
        self._of_integers = {pair.integers: pair for pair in pairs}
        self._of_source = {pair.source: pair for pair in pairs}

    def form(self, own: Sequence[ir.Node]) -> Form:
        """Return a stage of these nodes as a model."""
        outputs = dict(self._outgoing(own))
        inputs: dict[ir.Value, Port] = {}
        pairs = [self._of_integers[value] for value, port in outputs.items() if port.integers]
        quantizers = [node for pair in pairs for node in pair.quantizers]
        nodes = {*own, *quantizers}
        made = {value for node in own for value in node.outputs}
        for node in own:
            for value in values_read(node):
                if value not in made:
                    self._follow(value, nodes, inputs)
        part = part_of(self._model, sorted(nodes, key=self._order.__getitem__), inputs, outputs)
        for value in part.graph.inputs:
            if value.shape:
                # One that was inferred for another batch size would be refused.
                value.shape = ir.Shape([None, *value.shape[1:]])
        for value in part.graph.outputs:
            value.shape = None
        return Form(serialize(part), tuple(inputs.values()), tuple(outputs.values()))

    def _outgoing(self, own: Sequence[ir.Node]) -> Iterator[tuple[ir.Value, Port]]:
        inside = set(own)
        for node in own:
            for value in node.outputs:
                pair = self._of_source.get(value)
                readers = set(self._readers.get(value, ())) - inside
                if pair is not None:
                    readers.discard(pair.quantize)
                if readers or value.is_graph_output():
                    yield value, self._floats(value)
                if pair is not None:
                    yield pair.integers, _integers(pair)

    def _follow(self, value: ir.Value, nodes: set[ir.Node], inputs: dict[ir.Value, Port]) -> None:
        """Take what a stage reads as an input, or what computes it from a constant or from integers in."""
        node, whole = value.producer(), self._of_integers.get(value)
        if whole is not None:  # A nested graph takes the integers, and restores them itself.
            inputs[value] = _integers(whole)
            return
        if node is not None and node in nodes:
            return
        if node is None or node not in self._inserted:
            if not is_constant(value):
                inputs[value] = self._floats(value)
            return
        nodes.add(node)
        source = node.inputs[0] if node.op_type == DEQUANTIZE else None
        pair = self._of_integers.get(source) if source is not None else None
        if pair is not None:
            inputs[pair.integers] = _integers(pair)
            return
        for item in node.inputs:  # Of a constant, or rows of a table of integers that become floats.
            if item is not None:
                self._follow(item, nodes, inputs)

    def _floats(self, value: ir.Value) -> Port:
        pair = self._of_source.get(value)
        return Port(pair.tensor if pair is not None else value.name or "", False, value.name or "")


def _integers(pair: ActivationPair) -> Port:
    return Port(pair.tensor, True, pair.integers.name or "")


JOINED = 16  # stages that run as one where only a tensor before them is on a grid


@dataclass(frozen=True)
class Held:
    """A tensor between two stages: as floats, as integers, or as both where a stage makes both."""

    floats: Array | None = None
    integers: Array | None = None

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(array.nbytes for array in (self.floats, self.integers) if array is not None)


Tensors = Mapping[str, Held]  # Tensors between stages, by the name in the float model


def floats_of(held: Held, pair: ActivationPair | None) -> Array:
    """Return a tensor's real values; those that were never floats have a pair."""
    if held.floats is not None:
        return held.floats
    # A number is made of a tensor of rank 0, which cannot be fed.
    return np.asarray(dequantize(held.integers, pair.parameters))  # type: ignore[arg-type, union-attr]


def integers_of(held: Held, pair: ActivationPair) -> Array:
    """Return a tensor's integers."""
    if held.integers is not None:
        return held.integers
    floats = np.asarray(held.floats)
    # ONNX Runtime makes the least integer of NaN, as it does of -inf.
    floats = np.where(np.isnan(floats), -np.inf, floats)
    return np.asarray(quantize(floats, pair.parameters))


@dataclass(frozen=True)
class _Row:
    """Stages one after the other, which also run as one in their floating form."""

    whole: Stage
    session: Session
    indices: tuple[int, ...]


class StagedModel:
    """Sessions for both forms of each stage, opened once; by layer, the stage of its own quantization."""

    def __init__(
        self,
        stages: Sequence[Stage],
        pairs: Mapping[str, ActivationPair],
        output: str,
        others: Collection[str] = (),
    ) -> None:
        """Open the sessions; a variant is judged by ``output``; ``changed_outputs`` has the others, too."""
        self.stages = tuple(stages)
        self._pairs = pairs
        self._output = output
        self._outputs = {output, *others}
        self._floating = [_session(stage.floating) for stage in stages]
        self._quantized = [
            _session(stage.quantized) if stage.quantized else floating
            for stage, floating in zip(stages, self._floating, strict=True)
        ]
        self.layers = {stage.layer: index for index, stage in enumerate(stages) if stage.layer}
        self._needed = self._before_output()
        self._rows = [
            _Row(self.stages[index], self._floating[index], (index,)) for index in sorted(self._needed)
        ]

    def join(self, model: ir.Model, together: int = JOINED) -> None:
        """Open sessions for so many stages in a row of the float ``model``, for ``on_grids``."""
        needed = sorted(self._needed)
        joined = joined_stages(model, [self.stages[index] for index in needed], together)
        self._rows = [
            _Row(whole, _session(whole.floating), tuple(needed[first : first + together]))
            for first, whole in zip(range(0, len(needed), together), joined, strict=True)
        ]

    def run(self, inputs: Mapping[str, Array], *, quantized: bool) -> dict[str, Held]:
        """Return every tensor between stages, and the outputs, of the float or of the quantized model."""
        tensors = {name: self._fed(name, array, quantized=quantized) for name, array in inputs.items()}
        for index in range(len(self.stages)):
            tensors.update(self._run_stage(index, tensors, quantized=quantized))
        return tensors

    def behind(self, layer: str) -> tuple[int, ...]:
        """Return the stages that run again where a layer is changed, in order: its own first."""
        own = self.layers[layer]
        touched, indices = set(self.stages[own].outputs), [own]
        for index in range(own + 1, len(self.stages)):
            if index in self._needed and not touched.isdisjoint(self.stages[index].inputs):
                indices.append(index)
                touched.update(self.stages[index].outputs)
        return tuple(indices)

    def changed(self, layer: str, base: Tensors, *, quantized: bool) -> Array:
        """Return the output with one layer in this form, and all others as in ``base``, the other form.

        A layer that the output does not depend on changes nothing.
        """
        tensors = self._changed_tensors(layer, base, quantized=quantized)
        return self.floats(self._output, tensors[self._output])

    def changed_outputs(self, layer: str, base: Tensors) -> dict[str, Array]:
        """Return every output of the float model, whose tensors are ``base``, with one layer quantized."""
        tensors = self._changed_tensors(layer, base, quantized=True)
        return {name: self.floats(name, tensors[name]) for name in self._outputs}

    def on_grids(self, grids: Mapping[str, TensorGrid], base: Tensors) -> dict[str, Array]:
        """Return the outputs of the float model, whose tensors are ``base``, with some of them on grids."""
        tensors, touched = _Overlay(base), set(grids)
        for name, grid in grids.items():
            tensors.made[name] = Held(on_grid(self.floats(name, base[name]), grid))
        for row in self._rows:
            steps = [(self.stages[index], self._floating[index]) for index in row.indices]
            # Stages in a row run as one, unless a tensor on a grid is made inside.
            if all(grids.keys().isdisjoint(stage.outputs) for stage, _ in steps):
                steps = [(row.whole, row.session)]
            for stage, session in steps:
                if touched.isdisjoint(stage.inputs):
                    continue
                made = self._run_form(stage.floating, session, tensors)
                for name in set(made) & set(grids):
                    made[name] = Held(on_grid(self.floats(name, made[name]), grids[name]))
                tensors.made.update(made)
                touched |= set(made)
        return {name: self.floats(name, tensors[name]) for name in self._outputs}

    def _changed_tensors(self, layer: str, base: Tensors, *, quantized: bool) -> "_Overlay":
        """Run again the stages behind a layer; only outputs are kept."""
        indices = self.behind(layer)
        last_reader = {name: index for index in indices for name in self.stages[index].inputs}
        tensors = _Overlay(base)
        for index in indices:
            form = quantized if index == indices[0] else not quantized
            tensors.made.update(self._run_stage(index, tensors, quantized=form))
            for name in self.stages[index].inputs:
                if last_reader[name] == index and name not in self._outputs:
                    tensors.made.pop(name, None)
        return tensors

    def floats(self, tensor: str, held: Held) -> Array:
        """Return a tensor's real values."""
        return floats_of(held, self._pairs.get(tensor))

    def integers(self, tensor: str, held: Held) -> Array:
        """Return a tensor's integers."""
        return integers_of(held, self._pairs[tensor])

    def _fed(self, name: str, array: Array, *, quantized: bool) -> Held:
        # Once here, and not again in each model that has another layer changed.
        return Held(array, self.integers(name, Held(array)) if quantized and name in self._pairs else None)

    def _run_stage(self, index: int, tensors: Tensors, *, quantized: bool) -> dict[str, Held]:
        stage = self.stages[index]
        form: Form = stage.quantized if quantized and stage.quantized is not None else stage.floating
        return self._run_form(form, (self._quantized if quantized else self._floating)[index], tensors)

    def _run_form(self, form: Form, session: Session, tensors: Tensors) -> dict[str, Held]:
        feeds = {
            port.name: (self.integers if port.integers else self.floats)(port.tensor, tensors[port.tensor])
            for port in form.inputs
        }
        made: dict[str, Held] = {}
        for port, array in zip(form.outputs, session.run(feeds), strict=True):
            before = made.get(port.tensor, Held())
            made[port.tensor] = Held(
                before.floats if port.integers else array, array if port.integers else before.integers
            )
        return made

    def _before_output(self) -> frozenset[int]:
        wanted, needed = set(self._outputs), set()
        for index in reversed(range(len(self.stages))):
            if wanted & set(self.stages[index].outputs):
                needed.add(index)
                wanted |= set(self.stages[index].inputs)
        return frozenset(needed)


def _session(form: Form) -> Session:
    # One thread each: whole variants run side by side, which no operator has to wait for.
    return Session(form.model, threads=1, place=PREPACKED)


class _Overlay(dict[str, Held]):
    """Tensors of a variant, above those that it shares with the model that it is a variant of."""

    def __init__(self, base: Tensors) -> None:
        super().__init__()
        self.made: dict[str, Held] = {}
        self._base = base

    def __getitem__(self, name: str) -> Held:
        return self.made[name] if name in self.made else self._base[name]


def on_grid(values: Array, grid: TensorGrid) -> Array:
    """Return real values, rounded to a grid."""
    return fake_quantize(values, grid) if isinstance(grid, QuantParameters) else grid(values)
