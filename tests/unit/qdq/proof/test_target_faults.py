"""Faults that no quantized graph may have are found, whatever made it."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.qdq.proof.target_faults import structure_faults
from tests.each_case import each_case
from tests.quantized import quantize_model
from tests.unit.plan.graphs import build

PAIR = """(float[N,4] x) => (float[] y) <float s = {0.5}, uint8 z = {3}, float t = {0.25}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    y = Relu(d) }"""


def test_integers_may_be_clipped_to_fewer_bits_between_the_two():
    text = PAIR.replace("uint8 z = {3}", "uint8 z = {3}, uint8 low = {0}, uint8 high = {15}").replace(
        "d = DequantizeLinear(q, s, z)", "c = Clip(q, low, high)\n d = DequantizeLinear(c, s, z)"
    )
    assert list(structure_faults(build(text))) == []
    other = text.replace("(c, s, z)", "(c, t, z)")
    assert list(structure_faults(build(other))) == ["'d' does not have the parameters of 'q'"]


@pytest.mark.parametrize("second", ["float t = {0.5}", "float[1] t = {0.5}"])
def test_equal_constants_of_two_names_are_no_fault(second):
    text = PAIR.replace("float t = {0.25}", f"{second}, uint8 u = {{3}}").replace(
        "d = DequantizeLinear(q, s, z)", "d = DequantizeLinear(q, t, u)"
    )
    assert list(structure_faults(build(text))) == []
    other = text.replace("uint8 u = {3}", "uint8 u = {4}")
    assert list(structure_faults(build(other))) == ["'d' does not have the parameters of 'q'"]


@each_case(
    "old, new, fault",
    [
        ("(q, s, z)", "(q, t, z)", "'d' does not have the parameters of 'q'"),
        (
            "y = Relu(d)",
            "e = Cast<to=1>(q)\n y = Add(d, e)",
            "'q' is read by Cast 'e', which is not a DequantizeLinear",
        ),
        ("y = Relu(d)", "y = Relu(x)", "'d' is not read by any node"),
        ("d = DequantizeLinear(q, s, z)\n    y = Relu(d)", "y = Relu(x)", "'q' is not read by any node"),
        (
            "q = QuantizeLinear(x, s, z)",
            "q = Cast<to=2>(x)",
            "'d' reads neither a QuantizeLinear nor a constant",
        ),
        ("s = {0.5}", "s = {0}", "'d' has a scale that is not positive and finite"),
        ("s = {0.5}", "s = {-1}", "'d' has a scale that is not positive and finite"),
    ],
)
def test_faults(old, new, fault):
    assert old in PAIR
    assert list(structure_faults(build(PAIR.replace(old, new)))) == [fault]


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_a_scale_that_is_not_finite(scale):
    text = PAIR.replace("float s = {0.5}", "float s")
    model = build(text, constants={"s": np.array(scale, np.float32)})
    assert list(structure_faults(model)) == ["'d' has a scale that is not positive and finite"]


def test_a_bug_in_ptq_is_no_error_of_the_user(monkeypatch):
    monkeypatch.setattr(
        "ptq_cli.qdq.write.quantize_graph.structure_faults",
        lambda model: iter(["'q' is not read by any node"]),
    )
    from ptq_cli.plan.sites import Plan
    from ptq_cli.qdq.write.site_parameters import Parameters

    model: ir.Model = build("(float[N,4] x) => (float[] y) { y = Relu(x) }")
    with pytest.raises(RuntimeError, match="the quantized graph is malformed: 'q' is not read by any node"):
        quantize_model(
            model,
            Plan(target="ort-cpu", activations={}, weights=(), biases=(), layers=()),
            Parameters(activations={}),
        )


def test_a_zero_point_of_0_may_be_left_out_behind():
    text = PAIR.replace("uint8 z = {3}", "int8 z = {0}").replace("(q, s, z)", "(q, s)")
    assert list(structure_faults(build(text))) == []
    text = PAIR.replace("uint8 z = {3}", "int8 z = {3}").replace("(q, s, z)", "(q, s)")
    assert list(structure_faults(build(text))) == ["'d' does not have the parameters of 'q'"]


@each_case("step", ["Identity(w)", "Add(w, w)", "Transpose(w)", "Reshape(w, k)"])
def test_a_constant_may_be_unpacked_before_its_dequantize_linear(step):
    text = f"""(float[4,4] x) => (float[4,4] y) <float s = {{0.5}}, int32[4,4] w, int64[2] k = {{4, 4}}> {{
        u = {step} d = DequantizeLinear(u, s) y = Add(x, d) }}"""
    model = build(text, constants={"w": np.ones((4, 4), np.int32)})
    assert list(structure_faults(model)) == []
