"""The accuracy level of MatMulNBits: an option of a session, and not of the file."""

import onnx

from ptq_cli.models.files.stored import StoredModel

KERNEL = "MatMulNBits"
EXACT, ROUNDED = 0, 4  # activations in float, or in 8 bits by block: ONNX Runtime's default
MOST = 4
OPTION = "session.qdq_matmulnbits_accuracy_level"
PRODUCTS = ("MatMul", "Gemm")
RESTORES = "DequantizeLinear"


def reads_blocks(model: StoredModel) -> bool:
    """Return whether ONNX Runtime may compute a layer of a model with MatMulNBits from its DequantizeLinear.

    That is a product of floats and of a constant behind a DequantizeLinear. MatMulNBits in the file itself
    has a level of its own there.
    """
    graph = onnx.load_model_from_string(model.content).graph
    made = {name: node for node in graph.node for name in node.output}
    computed = {name for node in graph.node for name in node.output if node.op_type != "Transpose"}
    for node in graph.node:
        if node.op_type not in PRODUCTS or not node.input[0]:
            continue
        one, other = made.get(node.input[0]), made.get(node.input[1])
        is_restored = other is not None and other.op_type == RESTORES and other.input[0] not in computed
        if is_restored and (one is None or one.op_type != RESTORES):
            return True
    return False
