"""Weights with channels of zeros, or with no channels at all: quantized, checked, and run."""

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target, target_names
from ptq_cli.qdq.proof.structure import structure_faults
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, sqnr_db

CONV = """(float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] b, float[2,4,1,1] v> {
  c = Conv(x, w, b)
  r = Relu(c)
  y = Conv(r, v)
}"""
NARROW = {
    "matmul without inputs": "(float[2,0] x) => (float[] y) <float[0,4] w, float[4,3] v> {\n"
    "  h = MatMul(x, w)\n  y = MatMul(h, v)\n}",
    "matmul without outputs": "(float[2,4] x, float[2,4] z) => (float[] y, float[] t)"
    " <float[4,0] w, float[4,3] v> {\n  y = MatMul(x, w)\n  t = MatMul(z, v)\n}",
    "gemm without inputs": "(float[2,0] x) => (float[] y) <float[0,4] w, float[4] b, float[4,3] v> {\n"
    "  h = Gemm(x, w, b)\n  y = Gemm(h, v)\n}",
}


@each_case("target", target_names())
@each_case("zeros", [[1], [0, 1, 2, 3]], ids=["one", "all"])
def test_channels_of_zeros_keep_their_bias(target, zeros):
    random = np.random.default_rng(0)
    weight = random.standard_normal((4, 3, 3, 3)).astype(np.float32)
    weight[zeros] = 0.0
    bias = np.float32([0.5, 2.0, 0.25, 1.0])
    model = build(CONV, constants={"w": weight, "b": bias})
    result = quantized(model, make_plan(model, load_target(target)))
    inputs = sample(model, seed=9)
    assert list(structure_faults(result)) == []
    scale = result.graph.initializers["w.scale"].const_value.numpy()
    assert np.all(np.isfinite(scale)) and np.all(scale > 0)
    assert sqnr_db(run(model, inputs)[0], run(result, inputs)[0]) > 30.0


@each_case("target", target_names())
@each_case("name", NARROW)
def test_weights_without_values_are_quantized_like_any_other(target, name):
    model = build(NARROW[name])
    result = quantized(model, make_plan(model, load_target(target)))
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    inputs = sample(model, seed=1)
    for reference, other in zip(run(model, inputs), run(result, inputs, optimize=False), strict=True):
        assert reference.shape == other.shape
        assert np.allclose(reference, other, atol=0.1)
