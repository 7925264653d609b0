"""``x * sigmoid(x)``, which ONNX Runtime has an operator of its own for: its parts in a graph."""

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import sole_reader

OWN_DOMAINS = ("", "ai.onnx")
COMPUTED = (
    "x * sigmoid(x) stays float: ONNX Runtime's own operator for it, QuickGelu, is faster than integers"
)
"""The reason that a user reads where the target may write ONNX Runtime's own operators."""


def silu_input(node: ir.Node | None) -> ir.Value | None:
    """Return the x of a SiLU that ends with a node, or None if the node ends none.

    It is a Swish, which opset 24 has; or the Mul of x and Sigmoid(x), whose Sigmoid nothing else reads.

    Example:
        >>> import onnx
        >>> text = '''<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) {
        ...     s = Sigmoid(x) y = Mul(s, x) }'''
        >>> graph = ir.from_proto(onnx.parser.parse_model(text)).graph
        >>> [silu_input(node) is graph.inputs[0] for node in graph]
        [False, True]
    """
    if node is None or node.domain not in OWN_DOMAINS or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    if node.op_type == "Swish":
        return node.inputs[0]
    gate = gate_of(node)
    return gate.inputs[0] if gate is not None else None


def gate_of(node: ir.Node) -> ir.Node | None:
    """Return the Sigmoid of a Mul of x and Sigmoid(x), or None if the node is another."""
    if node.op_type != "Mul" or node.domain not in OWN_DOMAINS:
        return None
    for value, x in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        gate = value.producer() if value is not None else None
        if gate is None or gate.op_type != "Sigmoid" or gate.domain not in OWN_DOMAINS:
            continue
        if gate.inputs[0] is x and value is not None and sole_reader(value) is node:
            return gate
    return None


def is_part_of_silu(node: ir.Node) -> bool:
    """Tell whether a node is a SiLU, or the Sigmoid inside of one."""
    if node.op_type == "Sigmoid":
        product = sole_reader(node.outputs[0])
        return product is not None and gate_of(product) is node and silu_input(product) is not None
    return node.op_type in ("Mul", "Swish") and silu_input(node) is not None
