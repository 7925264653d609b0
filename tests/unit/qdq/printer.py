"""A graph as text: one line a constant, one line a node."""

import numpy as np
import onnx_ir as ir


def graph_text(model: ir.Model) -> str:
    graph = model.graph
    lines = [f"inputs: {', '.join(_value(value) for value in graph.inputs)}"]
    lines += [f"  {_constant(value)}" for value in graph.initializers.values()]
    lines += [f"  {_node(node)}" for node in graph]
    lines.append(f"outputs: {', '.join(_value(value) for value in graph.outputs)}")
    return "\n".join(lines) + "\n"


def _value(value: ir.Value) -> str:
    shape = "?" if value.shape is None else "x".join(str(size) for size in value.shape) or "scalar"
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    return f"{value.name}: {dtype} {shape}"


def _constant(value: ir.Value) -> str:
    array = np.asarray(value.const_value.numpy()) if value.const_value is not None else np.zeros(0)
    numbers = np.ravel(array)
    shown = ", ".join(f"{number:.6g}" for number in numbers[:4])
    return f"{_value(value)} = [{shown}{', …' if numbers.size > 4 else ''}]"


def _node(node: ir.Node) -> str:
    inputs = ", ".join(value.name or "" if value is not None else "" for value in node.inputs)
    outputs = ", ".join(value.name or "" for value in node.outputs)
    attributes = ", ".join(f"{name}={_attribute(item)}" for name, item in sorted(node.attributes.items()))
    return f"[{node.name}] {outputs} = {node.op_type}{f'<{attributes}>' if attributes else ''}({inputs})"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type != ir.AttributeType.GRAPH:
        return str(attribute.value)
    return "{ " + "; ".join(_node(node) for node in attribute.as_graph()) + " }"
