"""An embedding table that a last layer reads transposed: files hold it once, behind a Transpose.

A graph in memory has both as constants, so that the layer has a weight like any other. A runtime makes
the second one when it opens the file.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import MovedTensor, mapped, moved_tensor, named_alike
from ptq_cli.models.graph_reading import FreshNames, constant_shape

MARK = "ptq.turned_table"  # metadata key of the Transposes that stand for a constant
SMALLEST = 1 << 14  # bytes; a smaller table is not worth a node
PRODUCTS = ("Gemm", "MatMul")


def is_turned(table: ir.Value, weight: ir.Value) -> bool:
    """Return whether a constant matrix is the transpose of another one."""
    source, tensor = _turned_source(weight), table.const_value
    if source is not None and isinstance(tensor, ir.ExternalTensor):
        places = [(item.path, item.offset, item.dtype) for item in (source, tensor)]
        if places[0] == places[1]:
            return True
    with mapped(table) as one, mapped(weight) as other:
        if one.ndim != other.ndim or one.shape != other.shape[::-1]:
            return False
        return np.array_equal(one[0], other[:, 0]) and np.array_equal(one.T, other)


def _turned_source(weight: ir.Value) -> ir.ExternalTensor | None:
    """Return the table on disk that a constant is the transpose of; None of any other constant."""
    tensor = weight.const_value
    if not isinstance(tensor, MovedTensor) or tensor.move is not np.transpose:
        return None
    return tensor.source if isinstance(tensor.source, ir.ExternalTensor) else None


def turned_tables(graph: ir.Graph) -> dict[str, str]:
    """Return, by the name of each weight that is a transposed table of embeddings, the name of the table."""
    constants = [value for value in graph.initializers.values() if _is_matrix(value)]
    tables = [value for value in constants if any(use.node.op_type == "Gather" for use in value.uses())]
    weights = [value for value in constants if all(use.node.op_type in PRODUCTS for use in value.uses())]
    return {
        weight.name or "": table.name or ""
        for table in tables
        for weight in weights
        if constant_shape(table) == constant_shape(weight)[::-1]
        and table.dtype == weight.dtype
        and is_turned(table, weight)
    }


def weights_of_tables_apart(graph: ir.Graph) -> dict[str, str]:
    """Return the weights that are transposed tables on disk; of what reads the table this may be no part."""
    values = graph.initializers.items()
    return {name: "" for name, value in values if _is_matrix(value) and _turned_source(value) is not None}


def with_transposes(model: ir.Model, turned: Mapping[str, str]) -> ir.Model:
    """Return a copy of a model in which these weights are Transposes of their tables.

    A table without a name is not in the graph; it is added from where the weight has it.
    """
    model = model.clone()
    graph, names = model.graph, FreshNames.of(model.graph)
    for name, table in turned.items():
        weight = graph.initializers.pop(name)
        node = ir.node(
            "Transpose",
            [graph.initializers[table] if table else _add_table(graph, weight, names)],
            {"perm": [1, 0]},
            name=names.claim(f"{name}/Transpose"),
            metadata_props={MARK: "1"},
        )
        output = node.outputs[0]
        output.type, output.shape = weight.type, weight.shape
        weight.replace_all_uses_with(output)
        weight.name, output.name = None, name
        graph.insert_before(next(iter(graph)), [node])
    return model


def _add_table(graph: ir.Graph, weight: ir.Value, names: FreshNames) -> ir.Value:
    source, name = _turned_source(weight), names.claim(f"{weight.name}.table")
    assert source is not None  # noqa: S101 - it was found to be one
    shape = ir.Shape(source.shape.numpy())
    value = ir.Value(name=name, shape=shape, type=weight.type, const_value=named_alike(source, name))
    graph.register_initializer(value)
    return value


def restore_turned(model: ir.Model) -> ir.Model:
    """Make constants again of the Transposes that stand for them, in place."""
    graph = model.graph
    for node in [item for item in graph if item.op_type == "Transpose" and MARK in item.metadata_props]:
        table, output = node.inputs[0], node.outputs[0]
        if table is None or table.const_value is None or output.is_graph_output():
            continue
        name = output.name or ""
        tensor = moved_tensor(table.const_value, np.transpose, name)
        value = ir.Value(name=name, shape=output.shape, type=output.type, const_value=tensor)
        output.replace_all_uses_with(value)
        output.name = None
        graph.remove(node, safe=True)
        graph.register_initializer(value)
    return model


def _is_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or value.is_graph_input() or value.is_graph_output():
        return False
    return len(tensor.shape) == 2 and tensor.dtype.is_floating_point() and tensor.nbytes >= SMALLEST
