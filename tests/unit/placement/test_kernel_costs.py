"""The table of kernels' times: what it says of classes, of whole networks, and of processors."""

import pytest

from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.placement.kernel_costs import KernelTimes, kernel_class, known_costs, work_of
from ptq_cli.plan.multiply_accumulates import bind_shapes, multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.unit.plan.graphs import build

CLASSES = {
    "float[32,16,3,3] w": "Conv",
    "float[32,3,3,3] w": "Conv odd",
    "float[8,16,3,3] w": "Conv narrow",
    "float[1,16,3,3] w": "Conv single",
}
WIDE = """(float[N,64,28,28] x) => (float[N,64,28,28] y) <float[64,64,3,3] v, float[64,64,3,3] w> {
  a = Conv<pads=[1,1,1,1]>(x, v) b = Relu(a) y = Conv<pads=[1,1,1,1]>(b, w)
}"""
DEEP = """(float[N,24,56,56] x) => (float[N,24,56,56] y) <float[24,1,5,5] v, float[24,1,5,5] w> {
  a = Conv<group=24, pads=[2,2,2,2]>(x, v) b = HardSwish(a) y = Conv<group=24, pads=[2,2,2,2]>(b, w)
}"""


@pytest.mark.parametrize(("weight", "kind"), CLASSES.items())
def test_channels_decide_the_class_of_a_conv(weight: str, kind: str) -> None:
    inputs = weight.split(",")[1]
    model = build(f"(float[1,{inputs},9,9] x) => (float[] y) <{weight}> {{ [conv] y = Conv(x, w) }}")
    shapes = bind_shapes(model).shapes
    assert kernel_class(model.graph[0], shapes) == kind
    work = work_of(model, shapes, multiply_accumulates(model).counts)["conv"]
    outputs, channels = (int(size) for size in weight[6:].split(",")[:2])
    assert (work.products, work.pieces) == (outputs * channels * 9 * 49, 9 * 49)


def test_every_class_of_integers_is_known_in_float() -> None:
    for costs in known_costs():
        assert costs.integer.keys() <= costs.floating.keys()
        assert all(cost >= 0.0 for item in costs.integer.values() for cost in item)


@pytest.mark.parametrize(("text", "is_faster"), [(WIDE, True), (DEEP, False)])
def test_dense_convolutions_are_faster_and_deep_ones_with_a_swish_are_not(text: str, is_faster: bool) -> None:
    model, target = prepare(build(text), "net.onnx"), load_target("ort-cpu")
    plan = make_plan(model, target)
    table = KernelTimes(model, plan, target)
    speeds = table.speeds(plan)
    assert all((speed > 1.0) == is_faster for speed in speeds.values()), speeds
    assert speeds["vnni"] >= speeds["avx2"]
    assert bool(table.in_float()) != is_faster
