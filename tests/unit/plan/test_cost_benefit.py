"""Layers that save neither bytes nor time stay float, judged together with what they are connected to."""

from dataclasses import replace

import onnx_ir as ir
import pytest

from ptq_cli.plan import cost_benefit as costs
from ptq_cli.plan.cost_benefit import COSTS, Sizes, savings, unprofitable_layers
from ptq_cli.plan.planner import LayerChoices, make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.unit.plan.graphs import build, quantized, serialized

# Pays by its work: 9 * 32 * 32 multiply-accumulates for each of 1,024 pixels.
BACKBONE = "[body] b = Conv<pads=[1,1,1,1]>(x, w) [act] r = Relu(b)"
DECODED = (
    "(float[N,32,32,32] x) => (float[] y) <float[32,32,3,3] w, float[8,8] d, int64[3] t = {0,-1,8}> "
    f"{{ {BACKBONE} [sine] p = Sin(r) [rows] q = Reshape(p, t) [tiny] y = MatMul(q, d) }}"
)
CHAIN = "(float[N,8,64,64] x) => (float[] y) <{weights}> {{ {layers} }}"


def chain(length: int) -> ir.Model:
    """Small convolutions in a row: each pays only because it shares its pairs with its neighbors."""
    weights = ", ".join(f"float[8,8,3,3] w{k}" for k in range(length))
    names = ["x", *(f"h{k}" for k in range(length - 1)), "y"]
    layers = " ".join(
        f"[c{k}] {names[k + 1]} = Conv<pads=[1,1,1,1]>({names[k]}, w{k})" for k in range(length)
    )
    return build(CHAIN.format(weights=weights, layers=layers))


def left_out(model: ir.Model, target: str = "ort-cpu", asked: tuple[str, ...] = ()) -> dict[str, str]:
    rules = load_target(target)

    def planned(excluded):
        return make_plan(model, rules, LayerChoices(excluded=excluded), may_be_empty=True)

    return unprofitable_layers(model, planned({}), rules, asked, planned)


@pytest.mark.parametrize("target", ["ort-cpu", "tensorrt", "generic"])
def test_a_matmul_that_converts_more_than_it_computes_stays_float(target):
    (reason,) = left_out(build(DECODED), target).values()
    assert reason.startswith("quantizing it would add ")
    assert reason.endswith(" to the file and save no time")


def test_small_layers_in_a_chain_share_their_pairs(monkeypatch):
    monkeypatch.setattr(costs, "COSTS", replace(COSTS, per_element=100))  # so that each is doubtful alone
    model = chain(6)
    work = Sizes.of(model).work["c0"]
    assert work < 2 * 100 * 8 * 64 * 64
    assert left_out(model) == {}


def test_bytes_are_reason_enough():
    """A large weight that is used once: slower by its conversions, but a quarter of the size."""
    text = (
        "(float[N,32,32,32] x) => (float[] y) <float[32,32,3,3] w, int64[3] t = {0,-1,8}, float[8,512] d> "
        f"{{ {BACKBONE} [sine] p = Sin(r) [rows] q = Reshape(p, t) [large] y = MatMul(q, d) }}"
    )
    assert left_out(build(text)) == {}


@pytest.mark.parametrize("length", [2, 6])
def test_the_estimate_of_bytes_is_that_of_the_file(length):
    model = chain(length)
    plan = make_plan(model, load_target("ort-cpu"))
    expected = savings(model, plan, Sizes.of(model)).bytes
    before = len(serialized(model))
    saved = before - len(serialized(quantized(chain(length))))
    assert expected == pytest.approx(saved, abs=0.15 * before)
