"""Integers of few bits: clipped behind each QuantizeLinear; a float Clip before one becomes redundant.

How single graphs are quantized; what every small graph keeps is in ``tests/contracts/small_graphs``.
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.formats import IntegerFormat
from ptq_cli.placement.placed_graph import place
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.stored_layers import stored_formats
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import ActivationSettings
from ptq_cli.runtime.engine_registry import count_kernels
from tests.each_case import each_case
from tests.quantized import quantize_model
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, parameters, quantized, run, sample, serialized, sqnr_db

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


TIED = {
    "turned": "y = MatMul(r, turned)",
    "as it is": "y = Gemm<transB=1>(r, table)",
}


@each_case("layer", TIED)
def test_a_table_tied_to_a_layer_in_float_is_there_once_as_bytes(layer: str):
    text = """(int64[N] ids) => (float[N,512] y) <float[512,32] table, float[32,32] w, float[32,512] turned> {
        rows = Gather(table, ids) h = MatMul(rows, w) r = Relu(h) LAYER }"""
    model = build(text.replace("LAYER", TIED[layer]))
    values = model.graph.initializers
    values["turned"].const_value = ir.tensor(values["table"].const_value.numpy().T, name="turned")
    if layer != "turned":
        del values["turned"]
    asked = replace(
        tensor_recipe(Recipe(activations=ActivationSettings(mode="float"))), products={"y": "why"}
    )
    placement = place(model, make_plan(model, TARGET), TARGET, asked)
    result = quantized(model, placement.plan)
    large = [value for value in result.graph.initializers.values() if value.const_value.size >= 512 * 32]
    assert [value.dtype for value in large] == [ir.DataType.INT8]
    ids = {"ids": np.arange(0, 512, 3)}
    assert sqnr_db(run(model, ids)[0], run(result, ids)[0]) > 30.0
