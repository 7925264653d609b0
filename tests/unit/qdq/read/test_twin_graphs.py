"""What a quantized file holds beside its float model."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.read.constant_values import constant_values
from ptq_cli.qdq.read.graph_parts import part_of
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import UNPACKING, is_unpacked, unpacking_nodes
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from tests.placements import PLAIN_WEIGHTS
from tests.unit.plan.graphs import build, quantized, run
from tests.unit.qdq.twins import CHAIN, make_twins, twins_of


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


# The parameters of a pair are read in any form that the standard allows.


PAIR = """(float[N,4] x) => (float[4,N] y) <
    float s = {0.5}, float[1] t = {0.5}, uint8 z = {3}, uint8[1] u = {3}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, t, u) y = Transpose<perm=[1,0]>(d) }"""


def nodes(text: str) -> dict[str, ir.Node]:
    return {node.name: node for node in build(text).graph}


def test_one_number_is_the_same_with_an_axis_and_without():
    found = nodes(PAIR)
    assert grid_of(found["q"]).equals(grid_of(found["d"]))
    assert grid_of(found["q"]).ends == (-1.5, 126.0)


@pytest.mark.parametrize(
    ("old", "new"), [("t = {0.5}", "t = {0.25}"), ("u = {3}", "u = {4}"), ("x, s, z)", "x, s)")]
)
def test_grids_that_differ_are_not_the_same(old, new):
    found = nodes(PAIR.replace(old, new))
    assert not grid_of(found["q"]).equals(grid_of(found["d"]))


@pytest.mark.parametrize("zeros", [", u)", ")"])
def test_the_integers_of_a_file_without_types_are_those_of_the_zero_point(zeros):
    model = build(PAIR.replace("uint8", "int8").replace(", t, u)", ", t" + zeros))
    for node in model.graph:
        node.outputs[0].type = None
    assert [grid_of(node).dtype for node in model.graph][:2] == [ir.DataType.INT8, ir.DataType.INT8]


def test_the_arithmetic_takes_one_scale_of_known_integers():
    found = nodes(PAIR)
    parameters = grid_of(found["d"]).parameters
    assert parameters is not None
    assert (parameters.format.name, float(parameters.scale), int(parameters.zero_point)) == ("uint8", 0.5, 3)
    several = nodes(PAIR.replace("float s = {0.5}", "float[4] s = {1, 2, 3, 4}").replace("x, s, z)", "x, s)"))
    assert grid_of(several["q"]).parameters is None


# Some nodes of a graph are a model of their own, and the graph stays as it is.


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


LONG = 1500


@pytest.mark.parametrize("start", ["w", "x"])
def test_a_row_longer_than_python_calls_is_followed(start: str):
    assert "Transpose" in UNPACKING
    rows = [f"t0 = Transpose<perm=[1,0]>({start})"]
    rows += [f"t{index} = Transpose<perm=[1,0]>(t{index - 1})" for index in range(1, LONG)]
    graph = build(
        f"(float[4,4] x) => (float[4,4] y) <float[4,4] w> {{ {' '.join(rows)} y = Add(x, t{LONG - 1}) }}"
    )
    last = graph.graph.outputs[0].producer().inputs[1]
    assert is_unpacked(last) == (start == "w")
    assert not unpacking_nodes(graph)  # An Add is behind it, and no DequantizeLinear.
