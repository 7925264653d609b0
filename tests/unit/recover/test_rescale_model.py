"""The quantized form that factors are judged by."""

import numpy as np

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.recover.rescale_model import plainly_quantized, tensor_ranges
from ptq_cli.runtime.session import Session
from tests.unit.plan.graphs import build

TEXT = "(float[n, 2] x) => (float[n, 2] y) <float[2, 2] w> { [fc] y = MatMul (x, w) }"
WEIGHT = np.array([[1.0, 0.0], [0.0, -2.0]], np.float32)


def test_zero_is_in_every_range_and_nan_is_in_none() -> None:
    model = build(TEXT, constants={"w": WEIGHT})
    pieces = [
        {"x": np.float32([[1.0, 2.0]])},
        {"x": np.float32([[3.0, np.nan]])},
        {"x": np.float32([[0.5, 4.0]])},
    ]
    assert tensor_ranges(model, ["x", "y"], pieces, threads=1) == {"x": (0.0, 4.0), "y": (-8.0, 1.0)}


def test_few_bits_round_the_weights_and_leave_the_model() -> None:
    weight = np.array([[7.0, 2.0], [3.3, 0.4]], np.float32)
    model = build(TEXT, constants={"w": weight})
    plan = make_plan(model, load_target("ort-cpu"))
    ranges = dict.fromkeys(plan.measured, (-127.5, 127.5))
    quantized = plainly_quantized(model, plan, ranges, 4)
    made = Session(quantized, threads=1).run({"x": np.float32([[0.0, 100.0]])})[0]
    # Each output channel has 7 steps of its own: 3.3 becomes 3 of 1, and 0.4 one of 2/7.
    np.testing.assert_allclose(made, [[300.0, 200 / 7]], rtol=0.02)
    assert np.array_equal(model.graph.initializers["w"].const_value.numpy(), weight)
