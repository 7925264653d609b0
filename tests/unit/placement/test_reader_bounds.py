"""Where a range may end, because no reader tells values beyond apart."""

import math

import numpy as np
import pytest

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import UINT8
from ptq_cli.placement.reader_bounds import reader_bounds
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.unit.plan.graphs import build

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
