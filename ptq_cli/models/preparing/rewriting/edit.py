"""How the passes change a graph: constants of a node's own, and values that take another's place."""

import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph.fresh_names import FreshNames


def set_constant(node: ir.Node, index: int, array: Array, wanted: str, names: FreshNames) -> None:
    """Give a node an input that is a constant.

    Edge case:
        A constant that others read too stays as it is for them; the node gets its own.

    Args:
        node: is changed in place.
        index: which input.
        array: the constant's value.
        wanted: the name of a new constant; one that is replaced for this node alone keeps its name.
        names: that are free.
    """
    old = node.inputs[index] if index < len(node.inputs) else None
    if old is not None and old.is_initializer() and len(old.uses()) == 1 and not old.is_graph_output():
        old.const_value = ir.tensor(array, name=old.name)
        old.dtype, old.shape = old.const_value.dtype, ir.Shape(array.shape)
        return
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, add_constant(node.graph, array, wanted, names))


def add_constant(
    owner: ir.Graph | ir.Function | None, array: Array, wanted: str, names: FreshNames
) -> ir.Value:
    """Return a new initializer of a graph."""
    name = names.claim(wanted)
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape)
    )
    if not isinstance(owner, ir.Graph):
        raise TypeError("only a graph has initializers")
    owner.register_initializer(value)
    return value


def take_place(value: ir.Value, old: ir.Value, names: FreshNames) -> None:
    """Let ``value`` be read wherever ``old`` was, as an output of the graph under its name too."""
    is_output = old.is_graph_output()
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    if is_output:
        name = old.name
        old.name = names.claim(f"{name}.replaced")
        value.name = name
    if old.shape is not None:
        value.shape, value.type = old.shape, old.type


def drop(node: ir.Node) -> None:
    """Remove a node whose outputs nobody reads."""
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def put_instead(node: ir.Node, root: ir.Node, names: FreshNames) -> None:
    """Let a new node stand for what ``root`` computes; what only ``root`` needed is removed later.

    It has the name of ``root`` and its metadata, which tell the layer.
    """
    if not isinstance(root.graph, ir.Graph):
        raise TypeError("only nodes of a graph are replaced")
    old = root.outputs[0]
    node.outputs[0].name = names.claim(old.name or node.op_type)
    node.outputs[0].type, node.outputs[0].shape = old.type, old.shape
    node.name = root.name
    node.metadata_props.update(root.metadata_props)
    root.graph.insert_before(root, node)
    take_place(node.outputs[0], old, names)
    drop(root)


def put_before(root: ir.Node, node: ir.Node, names: FreshNames) -> ir.Value:
    """Insert a node in front of ``root``, which is about to go, and return what it computes.

    It is named for ``root`` and has its metadata, which tell the layer; shapes are inferred later.
    """
    if not isinstance(root.graph, ir.Graph):
        raise TypeError("only nodes of a graph are replaced")
    node.name = names.claim(f"{root.name or root.op_type}/{node.op_type}")
    node.outputs[0].name = names.claim(f"{node.name}.output")
    node.outputs[0].type = root.outputs[0].type
    node.metadata_props.update(root.metadata_props)
    root.graph.insert_before(root, node)
    return node.outputs[0]
