"""Which operators work along one axis with several axes behind it."""

import onnx_ir as ir

LEAST_BEHIND = 2
"""Axes: a single one is joined already."""


def axis_of(node: ir.Node) -> int:
    """Return the axis of an operator whose input has a known rank, counted from 0.

    Raises:
        ValueError: the rank is not known.
    """
    x = node.inputs[0]
    if x is None or x.shape is None:
        raise ValueError(f"the rank of what '{node.name}' reads is not known")
    return node.attributes.get_int("axis", -1) % len(x.shape)


def has_axes_to_join(node: ir.Node) -> bool:
    """Tell whether there are two or more axes behind that of an operator.

    Example:
        >>> import onnx
        >>> text = '''<ir_version: 10, opset_import: ["": 20]> g (float[n,16,4,c] x) => (float[n,16,4,c] z) {
        ...     y = Softmax <axis = 1> (x) z = Softmax <axis = 2> (y) }'''
        >>> graph = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))).graph
        >>> [has_axes_to_join(node) for node in graph]
        [True, False]
    """
    x = node.inputs[0]
    if x is None or x.shape is None or not len(x.shape):
        return False
    return len(x.shape) - 1 - axis_of(node) >= LEAST_BEHIND
