"""Which operators a quantized model takes longer for than its float model, in words."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at
from ptq_cli.models.pair_operators import QUANTIZE, is_pair_node

LEAST_LOSS = 0.05  # of the float model's time; less is within the error of a short measurement
MOST_CAUSES = 3
INPUTS, OUTPUTS = "the conversion of the inputs to integers", "the conversion of the outputs to floats"


@dataclass(frozen=True)
class SlowerOperators:
    """Operators of one kind that take longer in the quantized model."""

    what: str
    floating: float
    quantized: float


def slower_operators(
    float_model: ir.Model,
    quantized_model: ir.Model,
    integer: Collection[str],
    floating: Mapping[str, float],
    quantized: Mapping[str, float],
) -> tuple[SlowerOperators, ...]:
    """Where a quantized model loses time, the largest loss first, at most three.

    ``integer`` names the layers that are to be computed in integers.

    Edge case:
        A conversion belongs to the operator that is computed in float beside it, because it would not be
        there without it. Operators that lose less than 5 % of the float model's time are not returned.
    """
    nodes = {node.name or "": node for node in float_model.graph}
    computed = _computed_in_float(quantized_model, integer, quantized)
    taken, converted = defaultdict[str, float](float), set[str]()
    for node in quantized_model.graph:
        time, owner = quantized.get(node.name or "", 0.0), _owner(node, nodes, computed)
        taken[owner] += time
        if is_pair_node(node) and owner in computed and time > 0:
            converted.add(owner)
    groups: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys([*nodes, *taken]):
        what = _described(name, nodes, integer, converted)
        before, after = groups.get(what, (0.0, 0.0))
        groups[what] = (before + floating.get(name, 0.0), after + taken.get(name, 0.0))
    least = LEAST_LOSS * sum(floating.values())
    found = [SlowerOperators(what, *times) for what, times in groups.items() if times[1] - times[0] > least]
    return tuple(sorted(found, key=lambda item: item.floating - item.quantized)[:MOST_CAUSES])


def _computed_in_float(
    quantized_model: ir.Model, integer: Collection[str], quantized: Mapping[str, float]
) -> set[str]:
    """The operators that have no integers, and those whose result takes time to be quantized again."""
    found = set[str]()
    for node in quantized_model.graph:
        if is_pair_node(node):
            if node.op_type == QUANTIZE and quantized.get(node.name or "", 0.0) > 0:
                found.update(_computed_before(node))
        elif (node.name or "") not in integer:
            found.add(node.name or "")
    return found


def _owner(node: ir.Node, nodes: Mapping[str, ir.Node], computed: Collection[str]) -> str:
    """The node of the float model that one of the quantized model belongs to, or what it does."""
    if not is_pair_node(node):
        name = node.name or ""
        whole = name if name in nodes else name.rpartition("/")[0]
        return whole if whole in nodes else node.op_type
    if node.op_type == QUANTIZE:
        return next((name for name in _computed_before(node) if name in nodes), INPUTS)
    after = [name for name in _computed_after(node) if name in nodes]
    return next((name for name in after if name in computed), after[0] if after else OUTPUTS)


def _computed_before(node: ir.Node) -> Iterator[str]:
    """Yield the operator whose result reaches a conversion through other conversions."""
    value = input_at(node, 0)
    producer = value.producer() if value is not None else None
    if producer is not None and is_pair_node(producer):
        yield from _computed_before(producer)
    elif producer is not None:
        yield producer.name or ""


def _computed_after(node: ir.Node) -> Iterator[str]:
    """Yield the operators that read the result of a conversion through other conversions."""
    for reader, _ in node.outputs[0].uses():
        if is_pair_node(reader):
            yield from _computed_after(reader)
        else:
            yield reader.name or ""


def _described(
    name: str, nodes: Mapping[str, ir.Node], integer: Collection[str], converted: Collection[str]
) -> str:
    if name not in nodes:
        return name
    label = _label(nodes[name])
    if name in converted:
        return f"{label} between integer layers"
    return f"{label} in {'integers' if name in integer else 'float'}"


def _label(node: ir.Node) -> str:
    weight, group = input_at(node, 1), node.attributes.get_int("group", 1)
    if node.op_type != "Conv" or group == 1 or weight is None or weight.shape is None:
        return node.op_type
    return "depthwise Conv" if weight.shape[1] == 1 else "grouped Conv"
