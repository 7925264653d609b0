"""Parts of a graph are models of their own, and the graph stays as it is.

What a quantized file holds beside its float model.
"""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.read.constant_values import constant_values
from ptq_cli.qdq.read.twin_graphs import TwinGraphs, part_of
from tests.placements import PLAIN_WEIGHTS
from tests.unit.plan.graphs import build, quantized, run
from tests.unit.qdq.twins import CHAIN, make_twins, twins_of


def test_a_part_computes_what_its_nodes_do_and_leaves_the_model_alone() -> None:
    model = build(
        "(float[n, 4] x) => (float[n, 3] y) <float[4, 3] w, float[3] b> {"
        " m = MatMul (x, w) a = Add (m, b) y = Relu (a) }"
    )
    before = ir.to_proto(model)
    add, relu = model.graph.node("a"), model.graph.node("y")
    part = part_of(model, [add, relu], add.inputs[:1], relu.outputs)
    assert list(part.graph.initializers) == ["b"]
    product = np.float32([[-9.0, 0.0, 9.0]])
    bias = model.graph.initializers["b"].const_value.numpy()
    assert np.array_equal(run(part, {"m": product})[0], np.maximum(product + bias, 0))
    part.graph.inputs[0].shape = None
    assert ir.to_proto(model) == before
    assert [use.node.name for use in model.graph.node("m").outputs[0].uses()] == ["a"]


def test_pairs_are_named_as_in_the_float_model() -> None:
    graphs = make_twins(CHAIN).graphs
    assert list(graphs.pairs) == ["x", "r1", "r2", "c3", "sum", "pool", "flat"]
    pair = graphs.pairs["r1"]
    assert (pair.parameters.format.name, int(pair.parameters.zero_point)) == ("uint8", 0)
    assert graphs.readers_of(pair) == ("second", "join")


def test_values_are_what_the_quantized_model_computes_with() -> None:
    # Each to the nearest integer, which a Conv's weights are not otherwise.
    twins = make_twins(CHAIN, target=str(PLAIN_WEIGHTS))
    found = {item.tensor: constant_values(twins.graphs, item) for item in twins.graphs.constants}
    weight = found["w2"]
    assert (weight.dtype, weight.axis, weight.scale.shape) == ("int8", 0, (8,))  # type: ignore[union-attr]
    assert weight.integers is not None and weight.scale is not None
    expected = weight.integers.astype(np.float32) * weight.scale.reshape(8, 1, 1, 1)
    assert np.array_equal(weight.values, expected)
    assert np.abs(weight.values - weight.floats).max() <= 0.51 * weight.scale.max()
    assert np.array_equal(weight.spread(weight.scale)[:, 0, 0, 0], weight.scale)
    assert found["b1"].dtype == "int32" and not found["b1"].grid.zero_point.any()  # type: ignore[union-attr]


def test_a_weight_that_is_quantized_as_it_is_loaded_is_a_constant_too() -> None:
    model = build("(float[n, 4] x) => (float[n, 3] y) <float[4, 3] w> { [fc] y = MatMul (x, w) }")
    plan = make_plan(model, load_target("tensorrt"))
    twins = twins_of(model, quantized(model, plan), {"fc"})
    (constant,) = twins.graphs.constants
    found = constant_values(twins.graphs, constant)
    assert (constant.tensor, found.dtype, found.axis) == ("w", "int8", 1)
    assert found.integers is not None and np.abs(found.integers).max() == 127
    assert list(twins.graphs.pairs) == ["x"]


def test_a_pair_without_a_scale_of_its_own_is_refused() -> None:
    graphs = make_twins(CHAIN).graphs
    graphs.pairs["r1"].quantize.replace_input_with(1, graphs.float_model.graph.inputs[0])
    with pytest.raises(InvalidOnnxError, match="'r1/QuantizeLinear' of the quantized model has no single"):
        TwinGraphs(graphs.float_model, graphs.quantized_model)
