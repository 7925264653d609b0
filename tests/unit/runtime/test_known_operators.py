"""What operators of ONNX Runtime compute: without its type, what reads such a result stays float."""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.runtime.known_operators import know_foreign_types
from tests.unit.plan.graphs import build

TEXT = """(float[N,6,64] x) => (float[N,6,16] y) <float[64,64] w, float[64] g, float[64] b, float[64,16] v> {
    h = MatMul(x, w)
    s = com.microsoft.SkipLayerNormalization(x, h, g, b)
    y = MatMul(s, v) }"""


def test_what_reads_a_fused_operator_is_integer():
    model = build(TEXT)
    constants = {name: value.const_value for name, value in model.graph.initializers.items()}
    assert know_foreign_types(model) == 1
    value = model.graph.node("s").outputs[0]
    assert value.dtype == ir.DataType.FLOAT
    assert [size for size in value.shape or () if isinstance(size, int)] == [6, 64]
    assert {name: value.const_value for name, value in model.graph.initializers.items()} == constants
    assert [value.name for value in model.graph.inputs] == ["x"]
    layers = {layer.op: layer for layer in make_plan(prepare(model, "m.onnx"), load_target("ort-cpu")).layers}
    assert layers["MatMul"].quantized
    assert layers["SkipLayerNormalization"].reason == (
        "target ort-cpu has no rule for SkipLayerNormalization of domain com.microsoft: "
        "if ONNX Runtime's optimizer created it, quantize the model from before the optimization"
    )


def test_an_operator_that_nobody_knows_stays_unknown():
    model = build("(float[N,4] x) => (float[N,4] y) <float[4,4] w> { a = other.Thing(x)\n y = MatMul(a, w) }")
    assert know_foreign_types(model) == 0
    assert model.graph.node("a").outputs[0].type is None
    assert np.asarray(model.graph.initializers["w"].const_value.numpy()).shape == (4, 4)
