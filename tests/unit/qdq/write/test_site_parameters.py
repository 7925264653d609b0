"""Biases that overflow int32, channels of zeros, weights that are not finite."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.arithmetic import parameters_from_range
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.core.tensors import Array
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import WeightSite
from ptq_cli.plan.target.target_file import load_target, target_names
from ptq_cli.qdq.proof.target_faults import structure_faults
from ptq_cli.qdq.write.block_weights import BlockQuantizer
from ptq_cli.qdq.write.site_parameters import DecidedWeight, Parameters, decide_all
from ptq_cli.recipe.sections import AmaxSettings
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, sqnr_db, weight_noise

GRAPHS = {
    "conv": ("(float[N,3,8,8] x) => (float[] y) <float[4,3,3,3] w, float[4] b> { y = Conv(x, w, b) }", 0),
    "gemm": ("(float[N,8] x) => (float[] y) <float[4,8] w, float[4] b> { y = Gemm<transB=1>(x, w, b) }", 0),
    "matmul": (
        "(float[N,8] x) => (float[] y) <float[8,4] w, float[4] b> { m = MatMul(x, w)\n y = Add(m, b) }",
        1,
    ),
}
SHAPES = {"conv": [4, 3, 3, 3], "gemm": [4, 8], "matmul": [8, 4]}


def with_channel(name: str, factor: float, bias: float) -> dict[str, Array]:
    """Weights whose channel 1 is multiplied by ``factor``, and a bias of ``bias`` there."""
    weight = weight_noise("w", SHAPES[name])
    channels = np.moveaxis(weight, GRAPHS[name][1], 0)
    channels[1] *= factor
    return {"w": weight, "b": np.array([0.5, bias, -0.25, 0.0], np.float32)}


def parameters_of(name: str, constants: dict[str, Array]) -> Parameters:
    model = build(GRAPHS[name][0], constants=constants)
    plan = make_plan(model, load_target("ort-cpu"))
    return decide_all(model, plan, lambda site: parameters_from_range(-2.0, 2.0, site.format))


def errors(name: str, constants: dict[str, Array]) -> Array:
    """Largest error of each channel."""
    model = build(GRAPHS[name][0], constants=constants)
    inputs = sample(model, seed=9)
    difference = np.abs(run(model, inputs)[0] - run(quantized(model), inputs)[0])
    return np.max(np.moveaxis(difference, 1, 0).reshape(4, -1), axis=1)


@each_case("name", GRAPHS)
@each_case("bias", [3.0, -40.0, 1000.0])
def test_a_large_bias_beside_tiny_weights_does_not_overflow(name, bias):
    constants = with_channel(name, 1e-6, bias)
    found = parameters_of(name, constants)
    assert found.widened == {"w": 1}
    # Conv's output is quantized as a whole, in steps of its range.
    step = abs(bias) / 255 if name == "conv" else 1e-6 * abs(bias)
    assert errors(name, constants)[1] <= step


@each_case("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
@each_case("tensor", ["w", "b"])
def test_a_constant_that_is_not_finite_is_named(tensor, value):
    constants = with_channel("conv", 1.0, 0.5)
    constants[tensor].reshape(-1)[1] = value
    with pytest.raises(InvalidOnnxError) as caught:
        parameters_of("conv", constants)
    assert caught.value.message == f"the constant '{tensor}' holds NaN or Inf, which no integer represents"


def test_one_scale_serves_a_weight_without_channels():
    text = "(float[2,5,8] x) => (float[] y) <float[2,8,4] w> { y = MatMul(x, w) }"
    model = build(text)
    plan = make_plan(model, load_target("ort-cpu"))
    found = decide_all(model, plan, lambda site: parameters_from_range(-2.0, 2.0, site.format))
    scale = next(iter(found.weights.values())).scale
    assert scale.shape == ()
    weight = weight_noise("w", [2, 8, 4])
    # One scale, with room for the worst pair of neighbors along K.
    one, other = weight[:, 0::2], weight[:, 1::2]
    worst = np.max(np.where(one * other > 0, np.abs(one + other), 0))
    assert scale == pytest.approx(max(np.max(np.abs(weight)) / 127, worst / 128), rel=1e-6)


def test_tensors_that_share_parameters_are_decided_once():
    text = """(float[N,8] x) => (float[] y) <float[8,8] w, int64[3] s = {-1,2,4}, float[4,4] v> {
        g = Gemm(x, w)
        r = Reshape(g, s)
        y = MatMul(r, v) }"""
    model = build(text)
    plan = make_plan(model, load_target("ort-cpu"))
    asked = []

    def decide(site):
        asked.append(site.tensor)
        return parameters_from_range(-2.0, 2.0, site.format)

    found = decide_all(model, plan, decide)
    assert asked == ["x", "g"]
    assert found.activations["r"] is found.activations["g"]


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
    rules = load_target(target)
    result = quantized(model, make_plan(model, rules))
    inputs = sample(model, seed=9)
    assert list(structure_faults(result)) == []
    scale = result.graph.initializers["w.scale"].const_value.numpy()
    assert np.all(np.isfinite(scale)) and np.all(scale > 0)
    assert sqnr_db(run(model, inputs)[0], run(result, inputs, target=rules)[0]) > 30.0


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


@each_case("format", [IntegerFormat(4, True), IntegerFormat(4, False), IntegerFormat(8, True)])
@each_case("axis", [0, 1])
def test_blocks_stand_for_what_is_within_a_step(axis, format):
    weight = np.random.default_rng(3).standard_normal((40, 40)).astype(np.float32)  # a last block of 8
    site = WeightSite(tensor="w", node="m", input_index=1, format=format, axis=axis, block_size=16)
    quantizer = BlockQuantizer(AmaxSettings())
    parameters = quantizer.choose(weight, site).parameters
    decided = DecidedWeight(parameters=parameters, stored=quantizer.store(weight, site, parameters))
    steps = np.repeat(decided.scale(site), 16, axis).take(range(40), axis)
    # A zero point is an integer, too.
    assert np.all(np.abs(decided.on_grid(site) - weight) <= (0.501 if format.signed else 1.001) * steps)
