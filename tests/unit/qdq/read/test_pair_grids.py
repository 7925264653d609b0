"""Parameters of a pair, in any form that the standard allows."""

import onnx_ir as ir
import pytest

from ptq_cli.qdq.read.pair_grids import grid_of
from tests.unit.plan.graphs import build

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
