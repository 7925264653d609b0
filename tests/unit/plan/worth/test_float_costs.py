"""What a single layer costs in float: its products, and the tensors that are converted then."""

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.plan.worth import PER_ELEMENT, PER_NODE, float_costs
from tests.unit.plan.graphs import build

MODEL = build(
    "(float[1,8,4,4] x) => (float[] y) <float[8,8,3,3] a, float[8,8,3,3] b, float[8,8,3,3] c> { "
    "[first] h = Conv<pads=[1,1,1,1]>(x, a) [second] i = Conv<pads=[1,1,1,1]>(h, b) [join] j = Add(h, i) "
    "[last] y = Conv<pads=[1,1,1,1]>(j, c) }"
)
WORK = 8 * 8 * 9 * 16
CONVERTED = PER_NODE + PER_ELEMENT * 8 * 16


def test_a_layer_costs_its_products_and_what_is_converted_for_it():
    plan = make_plan(MODEL, load_target("ort-cpu"))
    found = float_costs(MODEL, plan, ["first", "second", "join", "last"])
    # x need not be converted to integers for it, but h has to be.
    assert found["first"] == WORK
    # h is read in integers and in float, and i made in float.
    assert found["second"] == WORK + 2 * CONVERTED
    # It has no products, but two tensors more are converted to float, and one to integers.
    assert found["join"] == 3 * CONVERTED
    assert found["last"] == WORK
