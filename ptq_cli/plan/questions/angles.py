"""Angles that encode a position, and outer products: integers would harm the one and not speed up the other.

Exported transformers compute rotary embeddings as a product of positions and frequencies, which Sin and Cos
both read. A scale that covers position 2000 has steps of 8, so that the angle is wrong by a full turn.
"""

import onnx_ir as ir

from ptq_cli.plan.questions.graph_questions import is_constant

SEARCH_DEPTH = 8
MOVERS = {"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose"}
MOVERS |= {"Cast", "Unsqueeze"}
SCALERS = {"Add", "Div", "Mul", "Sub"}
"""An angle times or plus a constant is an angle."""


def angle_refusal(node: ir.Node) -> str:
    """Return why an operator whose result is an angle stays float, or an empty string.

    Edge case:
        A Sin alone is the activation function of some networks, and not a reason.
    """
    found: set[str] = set()
    level = [node.outputs[0]]
    for _ in range(SEARCH_DEPTH):
        readers = list(dict.fromkeys(reader for value in level for reader, _ in value.uses()))
        found.update(reader.op_type for reader in readers)
        level = [reader.outputs[0] for reader in readers if _keeps_angle(reader)]
    if not {"Sin", "Cos"} <= found:
        return ""
    return "its result is an angle that Sin and Cos read: an error of one step could be a full turn"


def outer_product_refusal(node: ir.Node) -> str:
    """Return why a MatMul of two computed tensors that sums nothing stays float, or an empty string."""
    first, second = (node.inputs[0], node.inputs[1]) if node.op_type == "MatMul" else (None, None)
    if first is None or second is None or is_constant(first) or is_constant(second):
        return ""
    sizes = [list(value.shape or ()) for value in (first, second)]
    if all(len(size) > 1 for size in sizes) and (sizes[0][-1] == 1 or sizes[1][-2] == 1):
        return "multiplies without summing: in integers it would lose accuracy and not be faster"
    return ""


def _keeps_angle(node: ir.Node) -> bool:
    if node.op_type in MOVERS:
        return True
    return node.op_type in SCALERS and any(is_constant(value) for value in node.inputs if value is not None)
