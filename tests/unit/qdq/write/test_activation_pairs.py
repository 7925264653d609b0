"""Integers of few bits: clipped behind each QuantizeLinear; a float Clip before one becomes redundant."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.formats import IntegerFormat
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.stored_layers import stored_formats
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.runtime.onnxruntime_engine import count_kernels
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

TARGET = load_target("ort-cpu")


BOUNDED = """(float[N,3,8,8] x) => (float[N,4,4,4] y) <float[8,3,3,3] w, float[4,8,3,3] v, float[4] b> {
    c = Conv(x, w) r = BOUND y = Conv(r, v, b) }"""


BOUNDS = {
    "relu": "Relu(c)",
    "relu6": "Clip(c, low, high)",
    "both ends": "Clip(c, below, high)",
    "not reached": "Clip(c, low, far)",
    "none": "Identity(c)",
}


CONSTANTS = "float low = {0}, float below = {-0.5}, float high = {0.9}, float far = {60}"


def of_bits(bound: str, bits: int) -> tuple[ir.Model, ir.Model]:
    """A float model, and its quantized form whose activations have so many bits."""
    model = build(BOUNDED.replace("BOUND", BOUNDS[bound]).replace("float[4] b", f"float[4] b, {CONSTANTS}"))
    plan = make_plan(model, TARGET)
    format = IntegerFormat(bits, signed=False)
    sites = {name: replace(site, format=format) for name, site in plan.activations.items()}
    return model, quantized(model, replace(plan, activations=sites))


@each_case("bound", BOUNDS)
def test_both_convolutions_are_integer_whatever_bounds_the_first(bound: str):
    model, result = of_bits(bound, 4)
    kernels = count_kernels(serialized(result))
    assert (kernels.integer["Conv"], kernels.floating["Conv"]) == (2, 0)
    assert list(target_faults(result, TARGET)) == []
    inputs = sample(model)
    plain, fast = (run(result, inputs, optimize=optimize)[0] for optimize in (False, True))
    assert sqnr_db(plain, fast) > 60.0
    assert sqnr_db(run(model, inputs)[0], fast) > 10.0


@pytest.mark.parametrize("bits", [2, 3, 7])
def test_the_file_says_how_many_bits_there_are(bits: int):
    _, result = of_bits("relu6", bits)
    pairs = [node for node in result.graph if node.op_type == "QuantizeLinear"]
    assert {grid_of(node).parameters.format.name for node in pairs} == {f"uint{bits}"}
    assert stored_formats(result)["y"].activations == f"uint{bits}"
    assert sorted(name for name in result.graph.initializers if name.startswith(f"uint{bits}.")) == [
        f"uint{bits}.high",
        f"uint{bits}.low",
    ]


def test_the_bound_of_a_clip_moves_to_the_end_of_all_bits():
    _, result = of_bits("relu6", 4)
    clip = next(node for node in result.graph if node.name == "r")
    low, high = (float(value.const_value.numpy()) for value in clip.inputs[1:])
    step = float(result.graph.initializers["r.scale"].const_value.numpy())
    assert low == 0.0
    assert np.isclose(high, 255 * step), "the end of all 8 bits, which ONNX Runtime looks for"
