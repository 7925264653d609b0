"""Stages: a float graph and its quantized twin, cut so that one layer can run in either form.

Both are cut at the same tensors: where the quantized one has a pair of Q and DQ, where several stages read a
tensor, and behind each operator with quantized constants. A stage is what makes such a tensor from others. It
has the nodes of the float graph in its floating form; in its quantized form it reads and makes integers where
the quantized graph does, so that ONNX Runtime fuses it into the very kernels of the whole model.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.pair_operators import CLAMPS, DEQUANTIZE
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.qdq.read.twin_graphs import ActivationPair, TwinGraphs, part_of, readers_by_value, values_read


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
