"""Pass: a Relu or Clip behind a layer whose weight is in blocks is written as Max and Min.

ONNX Runtime 1.31 takes a Relu or Clip for a part of the operator before it, looks for a QuantizeLinear behind
the two, and without one leaves the DequantizeLinear of the weight in the graph. Max and Min compute the same.

Requires: bounds of a Clip are constants. Ensures: the last operator has the name of the one that it replaces.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import RESULT, FreshNames
from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.models.operators.pair_operators import dequantized_by
from ptq_cli.qdq.write.pair_nodes import add_initializer, put_in_front

BOUNDS = (("Max", 1), ("Min", 2))
"""The operator for each bound of a Clip, by its input."""


def write_clamps_of_blocks(model: ir.Model) -> None:
    """Replace each Relu and Clip that reads a layer with a weight in blocks, or the bias behind one.

    Args:
        model: a quantized graph, which is changed in place.
    """
    names = FreshNames.of(model.graph)
    for node in list(model.graph.all_nodes()):
        if node.op_type not in ("Relu", "Clip") or node.domain or not _follows_blocks(node):
            continue
        bounds = _bounds(node)
        if not bounds:
            continue
        value, made = node.inputs[0], []
        for index, (operator, bound) in enumerate(bounds):
            is_last = index == len(bounds) - 1
            name = node.name if is_last else names.claim(f"{node.name}/{operator}")
            constant = add_initializer(
                model.graph, names.claim(f"{node.name}.bound"), np.array(bound, np.float32)
            )
            new = ir.node(operator, [value, constant], name=name)
            new.outputs[0].name = f"{name}{RESULT}"
            new.outputs[0].type, new.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
            made.append(new)
            value = new.outputs[0]
        _replace(node, made)


def _replace(node: ir.Node, made: list[ir.Node]) -> None:
    old, result = node.outputs[0], made[-1].outputs[0]
    name = old.name
    put_in_front(node, *made)
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    if isinstance(node.graph, ir.Graph):
        node.graph.remove(node, safe=True)
    result.name = name


def _follows_blocks(node: ir.Node) -> bool:
    source = node.inputs[0]
    producer = source.producer() if source is not None else None
    if producer is not None and producer.op_type == "Add":
        before = [value.producer() for value in producer.inputs if value is not None]
        return any(_reads_blocks(item) for item in before)
    return _reads_blocks(producer)


def _reads_blocks(node: ir.Node | None) -> bool:
    if node is None or node.op_type not in ("MatMul", "Gemm"):
        return False
    dequantize = dequantized_by(input_at(node, 1))
    return dequantize is not None and bool(dequantize.attributes.get_int("block_size", 0))


def _bounds(node: ir.Node) -> list[tuple[str, float]]:
    """Return the operators that clamp, with their constants; none if a bound is computed."""
    if node.op_type == "Relu":
        return [("Max", 0.0)]
    found = []
    for operator, index in BOUNDS:
        value = input_at(node, index)
        if value is not None and value.const_value is None:
            return []
        if value is not None and value.const_value is not None:
            found.append((operator, float(value.const_value.numpy().item())))
    return found
