"""What every quantized model keeps."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.tensors import Array
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.structure import structure_faults
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

LEAST_DB = 20.0
STEPS = 2.5
"""Optimized kernels round a sum once where the written graph rounds its parts; a chain adds up."""


@pytest.fixture(scope="module")
def made():
    """Float model, plan, its bytes before, and the quantized model, each case once."""
    found = {}

    def make(name: str) -> tuple[ir.Model, Plan, bytes, ir.Model]:
        if name not in found:
            model = build(CASES[name].graph)
            plan = make_plan(model, load_target("ort-cpu"))
            before = serialized(model)
            found[name] = (model, plan, before, quantized(model, plan))
        return found[name]

    return make


def finite(array: Array) -> Array:
    # A masked score is -3.4e38, and products of it are infinite on both sides.
    wide = array.astype(np.float64)
    return np.where(np.isfinite(wide) & (np.abs(wide) < 1e6), wide, 0.0)


@pytest.mark.parametrize("name", CASES)
def test_the_float_model_is_left_as_it_was(made, name):
    model, _, before, _ = made(name)
    assert serialized(model) == before


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_well_formed(made, name):
    model, _, _, result = made(name)
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    assert list(structure_faults(result)) == []
    names = [node.name for node in result.graph]
    assert len(set(names)) == len(names)
    assert {node.name for node in model.graph} <= set(names)


@pytest.mark.parametrize("name", CASES)
def test_inputs_and_outputs_stay_as_they_are(made, name):
    model, _, _, result = made(name)
    for old, new in ((model.graph.inputs, result.graph.inputs), (model.graph.outputs, result.graph.outputs)):
        assert [(value.name, value.dtype, value.shape) for value in old] == [
            (value.name, value.dtype, value.shape) for value in new
        ]


@pytest.mark.parametrize("name", CASES)
def test_the_model_computes_nearly_the_same(made, name):
    model, _, _, result = made(name)
    inputs = sample(model, seed=9)
    wanted, found = run(model, inputs), run(result, inputs)
    for reference, other in zip(wanted, found, strict=True):
        assert sqnr_db(finite(reference), finite(other)) > LEAST_DB


@pytest.mark.parametrize("name", CASES)
def test_optimizing_changes_a_few_steps_at_most(made, name):
    model, plan, _, result = made(name)
    inputs = sample(model, seed=9)
    constants = {value.name: value.const_value for value in result.graph.initializers.values()}
    written, optimized = run(result, inputs, optimize=False), run(result, inputs)
    for output, plain, fast in zip(model.graph.outputs, written, optimized, strict=True):
        largest = float(np.max(np.abs(finite(plain)), initial=0.0))
        site = plan.activations.get(output.name or "")
        scale = constants[f"{site.source}.scale"] if site else None
        step = float(scale.numpy()) if scale is not None else largest / 255
        assert np.max(np.abs(finite(plain) - finite(fast)), initial=0.0) <= STEPS * step + 1e-6


@pytest.mark.parametrize("name", CASES)
def test_weights_are_stored_as_bytes_and_once(made, name):
    model, plan, _, result = made(name)
    stored = result.graph.initializers
    for site in plan.weights:
        integers = stored[f"{site.tensor}.quantized"].const_value
        assert integers is not None
        assert integers.dtype == ir.DataType.INT8
        assert integers.nbytes == integers.size
        assert np.min(integers.numpy()) >= -127
    nested = [
        value for node in model.graph.all_nodes() if node.graph is not model.graph for value in node.inputs
    ]
    read = {value.name for node in result.graph for value in node.inputs if value is not None}
    read |= {value.name for value in (*nested, *result.graph.outputs) if value is not None}
    assert set(stored) <= read, "a constant is stored that nobody reads"


@pytest.mark.parametrize("name", CASES)
def test_biases_have_the_scale_of_the_products(made, name):
    _, plan, _, result = made(name)
    stored = {key: value.const_value.numpy() for key, value in result.graph.initializers.items()}
    for site in plan.biases:
        product = (
            stored[f"{plan.activations[site.activation].source}.scale"]
            * stored[f"{site.weight.tensor}.scale"]
        )
        scales = [stored[key] for key in stored if key.startswith(f"{site.tensor}.scale")]
        assert any(np.array_equal(scale, product.astype(np.float32)) for scale in scales)
        assert stored[f"{site.tensor}.quantized"].dtype == np.int32


def test_quantizing_twice_gives_the_same_bytes():
    model = build(CASES["residual_block"].graph)
    assert serialized(quantized(model)) == serialized(quantized(model))


def test_layers_that_share_a_weight_share_what_is_stored(made):
    _, _, _, result = made("shared_weight")
    assert [key for key in result.graph.initializers if key.startswith("w")] == [
        "w.quantized",
        "w.scale",
        "w.zero_point",
    ]
    # The inputs' scales differ, and with them the biases'.
    assert sum(key.startswith("b.quantized") for key in result.graph.initializers) == 2


def test_a_shared_weight_on_two_axes_is_stored_for_each(made):
    _, _, _, result = made("shared_weight_on_two_axes")
    assert sum(key.startswith("w.quantized") for key in result.graph.initializers) == 2


def test_tensors_that_share_parameters_share_the_constants(made):
    _, _, _, result = made("reshape_transpose")
    pairs = [node for node in result.graph if node.op_type == "QuantizeLinear"]
    assert {(node.inputs[1].name, node.inputs[2].name) for node in pairs} == {
        ("x.scale", "x.zero_point"),
        ("g.scale", "g.zero_point"),
    }


def test_a_float_reader_reads_the_float_value_where_there_is_one(made):
    _, _, _, result = made("residual_after_norm")
    readers = {node.op_type for node, _ in next(n for n in result.graph if n.name == "l").outputs[0].uses()}
    assert readers == {"QuantizeLinear", "Add"}


def test_a_float_reader_of_an_integer_result_reads_behind_the_pair(made):
    _, _, _, result = made("conv_hardswish")
    reader = next(node for node in result.graph if node.op_type == "HardSwish")
    assert reader.inputs[0].producer().op_type == "DequantizeLinear"


def test_names_that_are_taken_are_left_alone():
    text = """(float[N,3,8,8] x) => (float[] y)
        <float[4,3,3,3] w, float[4,1,1] y_scale, float[4,1,1] w_scale> {
        c = Conv(x, w)
        d = Mul(c, y_scale)
        y = Mul(d, w_scale) }"""
    model = build(text)
    for taken, wanted in (("y_scale", "c.scale"), ("w_scale", "w.scale")):
        model.graph.initializers[taken].name = wanted
    result = quantized(model)
    inputs = sample(model, seed=9)
    assert sqnr_db(run(model, inputs)[0], run(result, inputs)[0]) > LEAST_DB
    assert {"c.scale", "c.scale_2", "w.scale", "w.scale_2"} <= set(result.graph.initializers)


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
