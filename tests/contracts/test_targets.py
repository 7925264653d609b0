"""What every target promises, held on every small graph: structure, checker, ONNX Runtime, and accuracy.

What ``ort-cpu`` says of integer kernels is measured in ``test_ort_kernels.py``.
"""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.tensors import Array
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target, target_names
from ptq_cli.qdq.proof.structure import structure_faults
from ptq_cli.qdq.proof.target_faults import target_faults
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, quantized, run, sample, sqnr_db

TARGETS = target_names()
LEAST_DB = 25.0
"""Of noise through untrained layers, with ranges from ten batches."""


def finite(array: Array) -> Array:
    # A masked score is -3.4e38, and products of it are infinite on both sides.
    wide = array.astype(np.float64)
    return np.where(np.isfinite(wide) & (np.abs(wide) < 1e6), wide, 0.0)


@pytest.fixture(scope="module")
def made():
    found = {}

    def make(target: str, name: str):
        if (target, name) not in found:
            model = build(CASES[name].graph)
            plan = make_plan(model, load_target(target))
            found[target, name] = (model, plan, quantized(model, plan))
        return found[target, name]

    return make


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", TARGETS)
def test_the_graph_keeps_the_table(made, target, name):
    _, _, result = made(target, name)
    assert list(target_faults(result, load_target(target))) == []


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", TARGETS)
def test_the_checker_takes_it_and_no_pair_is_torn(made, target, name):
    model, _, result = made(target, name)
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    assert list(structure_faults(result)) == []
    assert [value.name for value in result.graph.outputs] == [value.name for value in model.graph.outputs]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", TARGETS)
def test_onnx_runtime_runs_it_near_the_float_model(made, target, name):
    model, _, result = made(target, name)
    inputs = sample(model, seed=9)
    for optimize in (False, True):
        found = run(result, inputs, optimize=optimize)
        for reference, other in zip(run(model, inputs), found, strict=True):
            assert sqnr_db(finite(reference), finite(other)) > LEAST_DB


def initializer(result: ir.Model, name: str) -> Array:
    constant = result.graph.initializers[name].const_value
    assert constant is not None
    return constant.numpy()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["tensorrt", "generic"])
def test_every_zero_point_is_0_where_that_is_promised(made, target, name):
    _, _, result = made(target, name)
    readers = [node for node in result.graph if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    zeros = [node.inputs[2].const_value.numpy() for node in readers if len(node.inputs) > 2]
    assert {str(zero.dtype) for zero in zeros} <= {"int8"}
    assert not any(np.any(zero) for zero in zeros)


@pytest.mark.parametrize("name", CASES)
def test_weights_of_tensorrt_are_floats_on_the_grid_behind_a_pair(made, name):
    _, plan, result = made("tensorrt", name)
    nodes = {node.name: node for node in result.graph}
    for site in plan.weights:
        dequantize = nodes[site.node].inputs[site.input_index].producer()
        quantize = dequantize.inputs[0].producer()
        assert (quantize.op_type, dequantize.op_type) == ("QuantizeLinear", "DequantizeLinear")
        on_grid, scale = (value.const_value.numpy() for value in quantize.inputs[:2])
        shape = [1] * on_grid.ndim
        if site.axis is not None:
            shape[site.axis] = -1
        steps = on_grid / scale.reshape(shape)
        assert np.allclose(steps, np.rint(steps), atol=1e-3)
        assert np.max(np.abs(steps), initial=0.0) <= 127.001


@pytest.mark.parametrize("name", CASES)
def test_int32_biases_only_where_they_are_promised(made, name):
    for target in TARGETS:
        plan = made(target, name)[1]
        assert not plan.biases or load_target(target).bias.format == "int32"


@pytest.mark.parametrize("name", CASES)
def test_no_sum_of_two_products_saturates_without_vnni(made, name):
    _, plan, result = made("ort-cpu-avx2", name)
    for site in plan.weights:
        integers = initializer(result, f"{site.tensor}.quantized").astype(np.int64)
        # vpmaddubsw: u8 * s8 + u8 * s8 in int16, whichever two weights stand side by side.
        assert 2 * 255 * np.max(np.abs(integers), initial=0) <= np.iinfo(np.int16).max


def test_with_8_bits_two_products_do_saturate(made):
    _, plan, result = made("ort-cpu", "conv")
    integers = initializer(result, f"{plan.weights[0].tensor}.quantized").astype(np.int64)
    assert 2 * 255 * np.max(np.abs(integers)) > np.iinfo(np.int16).max


WRONG = {"tensorrt": {"formats", "zero points", "storage", "results"}, "generic": {"formats", "zero points"}}


@pytest.mark.parametrize("other", WRONG)
def test_a_graph_of_another_target_does_not_keep_the_table(made, other):
    faults = target_faults(made("ort-cpu", "conv")[2], load_target(other))
    assert {fault.rule for fault in faults} == WRONG[other]
