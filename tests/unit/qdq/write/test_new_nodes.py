"""Types of the tensors of pairs: a file holds those of its outputs alone."""

import onnx
import onnx_ir as ir

from ptq_cli.qdq.read.quantized_file import with_types
from ptq_cli.qdq.write.new_nodes import forget_pair_types
from tests.unit.plan.graphs import build, quantized

CHAIN = """(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[16,3,3,3] w, float[4,16,1,1] v> {
    c = Conv(x, w) r = Relu(c) y = Conv(r, v) }"""


def types(model: ir.Model) -> dict[str, tuple[object, str]]:
    return {
        value.name or "": (value.dtype, str(value.shape)) for node in model.graph for value in node.outputs
    }


def test_what_is_left_out_is_inferred_again():
    model = quantized(build(CHAIN))
    before = types(model)
    smaller = model.clone()
    forget_pair_types(smaller)
    left = {info.name for info in ir.to_proto(smaller).graph.value_info}
    assert left == {"c", "r", "y.float"}
    onnx.checker.check_model(ir.to_proto(smaller), full_check=True)
    assert types(with_types(smaller)) == before
