"""Where a range may end, because no reader tells values beyond apart.

What only moves values needs no measurement of its own.
"""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest

import ptq_cli
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import UINT8
from ptq_cli.placement.ranges import reader_bounds
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.unit.plan.graphs import build, serialized

NETWORK = """(float[1,4,8,8] x) => (float[] y) <float[4,4,1,1] w, float[4,4,1,1] v> {{
  [first] a = Conv(x, w)
  {middle}
  [last] y = Conv(b, v)
}}"""
SILU = "[gate] s = Sigmoid(a) [product] b = Mul(a, s)"


def bounds(middle):
    """Return the bounds of what the first layer makes, on a grid from -8 to 8 in steps of a 16th."""
    model = build(NETWORK.format(middle=middle))
    plan = make_plan(model, load_target("ort-cpu"))
    grid = QuantParameters(np.float32(0.0625), np.asarray(128, np.int64), UINT8)
    assert "a" in plan.activations
    return reader_bounds(model, plan, dict.fromkeys(plan.sources, grid)).get("a")


@pytest.mark.parametrize(
    ("middle", "low", "high"),
    [
        ("[swish] b = HardSwish(a)", -2.94, math.inf),
        (SILU, -5.09, math.inf),
        ("[gate] b = Sigmoid(a)", -3.43, 3.43),
    ],
    ids=["HardSwish", "SiLU", "Sigmoid"],
)
def test_a_range_ends_where_its_readers_are_flat(middle, low, high):
    # There the result is half of its step from where the function is flat.
    assert bounds(middle) == pytest.approx((low, high), abs=0.01)


@pytest.mark.parametrize(
    "middle",
    ["[leaky] b = LeakyRelu(a)", "[swish] s = HardSwish(a) [sum] b = Add(a, s)"],
    ids=["nothing is flat", "another reader"],
)
def test_a_reader_that_tells_all_values_apart_leaves_the_range(middle):
    assert bounds(middle) is None


def test_a_layer_behind_a_reshape_is_quantized_though_what_lies_before_it_is_excluded(tmp_path, monkeypatch):
    """The product of attention is measured where it is made, and read behind a Reshape."""
    random = np.random.default_rng(0)
    text = """(float[n,4,16] x) => (float[m,64] y)
        <float[16,16] v, float[16,64] w, int64[2] shape = {-1, 16}> {
        [inner] product = MatMul(x, v) [flatten] flat = Reshape(product, shape)
        [outer] y = MatMul(flat, w) }"""
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(serialized(build(text)))
    ptq_cli.calibrate("m.onnx", data=random.normal(size=(16, 4, 16)).astype(np.float32), recover=["none"])
    assert "flat" not in load_calibration(Path("ptq-run/calibration.safetensors")).statistics
    ptq_cli.export(exclude=["inner", "flatten"], output="q.onnx")
    graph = onnx.load("q.onnx").graph
    (outer,) = [node for node in graph.node if node.name == "outer"]
    made = {name: node.op_type for node in graph.node for name in node.output}
    assert [made[name] for name in outer.input] == ["DequantizeLinear", "DequantizeLinear"]


def test_a_layer_behind_a_part_of_an_excluded_layers_result_has_the_range_of_the_whole(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    text = """(float[n,32,8,8] x) => (float[n,32,8,4] y) <float[32,32,3,3] v, float[32,32,3,3] w,
        int64[1] begin = {0}, int64[1] end = {4}, int64[1] axis = {3}> {
        [inner] a = Conv<pads=[1,1,1,1]>(x, v) [part] b = Slice(a, begin, end, axis)
        [outer] y = Conv<pads=[1,1,1,1]>(b, w) }"""
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(serialized(build(text)))
    data = random.normal(size=(16, 32, 8, 8)).astype(np.float32)
    result = ptq_cli.quantize("m.onnx", data=data, exclude=["inner", "part"], recover=["none"])
    assert [layer.name for layer in result.export.layers if layer.integer] == ["outer"]
