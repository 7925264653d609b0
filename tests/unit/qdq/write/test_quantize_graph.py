"""How single graphs are quantized; what every small graph keeps is in ``tests/contracts/small_graphs``."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.target_faults import target_faults
from tests.quantized import quantize_model
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, parameters, quantized, run, sample, serialized, sqnr_db

LEAST_DB = 20.0


def export(name: str) -> ir.Model:
    return quantized(build(CASES[name].graph))


def test_quantizing_twice_gives_the_same_bytes():
    model = build(CASES["residual_block"].graph)
    assert serialized(quantized(model)) == serialized(quantized(model))


def test_a_shared_weight_on_two_axes_is_stored_for_each():
    result = export("shared_weight_on_two_axes")
    assert sum(key.startswith("w.quantized") for key in result.graph.initializers) == 2


def test_a_value_that_is_named_as_a_float_output_would_be_is_left_alone():
    text = """(float[N,3,8,8] x) => (float[] c, float[] y) <float[3,3,1,1] w> { t = Tanh(x)
        c = Conv(t, w)
        y = Conv(c, w) }"""
    model = build(text)
    model.graph.node(0).outputs[0].name = "c.float"
    result = quantized(model)
    inputs = sample(model, seed=9)
    assert [value.name for value in result.graph.outputs] == ["c", "y"]
    assert sqnr_db(run(model, inputs)[0], run(result, inputs)[0]) > LEAST_DB


@pytest.mark.parametrize(("inner", "axis"), [(1, 0), (2, 0), (3, 1)], ids=["depthwise", "fanned", "grouped"])
def test_a_grouped_transposed_convolution_has_a_scale_for_each_channel(inner: int, axis: int):
    groups = 4 if axis == 0 else 2
    weight = np.random.default_rng(1).normal(size=(4, inner, 2, 2))
    spread = np.geomspace(1e-3, 1e3, weight.shape[axis])
    weight *= np.moveaxis(spread.reshape(-1, 1, 1, 1), 0, axis)
    text = f"""(float[n,4,5,5] x) => (float[] y) <float[4,{inner},2,2] w, float[{inner * groups}] b> {{
        y = ConvTranspose<group={groups}, strides=[2,2]>(x, w, b) }}"""
    model = build(text, constants={"w": weight.astype(np.float32), "b": np.zeros(inner * groups, np.float32)})
    inputs = sample(model)
    expected, written = run(model, inputs)[0], quantized(model)
    found = run(written, inputs)[0]
    for channel in range(inner * groups):
        assert sqnr_db(expected[:, channel], found[:, channel]) > 35
    assert not list(target_faults(written, load_target("ort-cpu")))


@pytest.mark.parametrize("channels", [slice(None), slice(2, 3)], ids=["all", "one"])
def test_small_weights_of_large_inputs_are_as_exact_as_others(channels: slice):
    random = np.random.default_rng(2)
    weight = random.normal(size=(16, 8)).astype(np.float32)
    weight[:, channels] *= np.float32(1e-8)
    model = build(
        "(float[n,16] x) => (float[n,8] y) <float[16,8] w> { y = MatMul(x, w) }", constants={"w": weight}
    )
    batch = {"x": (random.normal(size=(64, 16)) * 1e8).astype(np.float32)}
    plan = make_plan(model, load_target("ort-cpu"))
    written = quantize_model(model, plan, parameters(model, plan, [batch]))
    expected, found = run(model, batch)[0], run(written, batch)[0]
    assert min(sqnr_db(expected[:, n], found[:, n]) for n in range(8)) > 30
