"""Large constants are set aside while C++ looks at a graph, which would copy them several times."""

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

LARGE = 1024
"""Elements; a converter looks into small constants (axes, sizes), and never into larger ones."""

Tensors = dict[str, ir.TensorProtocol]


def set_aside(graph: ir.Graph) -> Tensors:
    """Turn large constants of a graph into inputs, and return their tensors by name."""
    large = {}
    inputs = set(graph.inputs)
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.size < LARGE or value in inputs or value.is_graph_output():
            continue
        del graph.initializers[name]
        value.const_value = None
        value.dtype, value.shape = tensor.dtype, ir.Shape(tensor.shape.numpy())
        graph.inputs.append(value)
        large[name] = tensor
    return large


def put_back(graph: ir.Graph, large: Tensors) -> None:
    """Turn inputs of a graph, or of a copy of it, into the constants again that ``set_aside`` returned."""
    for value in [item for item in graph.inputs if item.name in large]:
        graph.inputs.remove(value)
        value.const_value = large[value.name or ""]
        graph.register_initializer(value)


@contextlib.contextmanager
def large_constants_aside(graph: ir.Graph) -> Iterator[None]:
    """Keep large constants of a graph aside inside the block; they are in another order afterwards."""
    large = set_aside(graph)
    try:
        yield
    finally:
        put_back(graph, large)
