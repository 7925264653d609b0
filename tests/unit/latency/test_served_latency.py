"""Where a quantized model loses time: conversions count for the operator that needs them."""

import onnx_ir as ir
import pytest

from ptq_cli.latency.served_latency import (
    INPUT_CONVERSION,
    OUTPUT_CONVERSION,
    SlowerOperators,
    slower_operators,
)

HEAD = '<ir_version: 10, opset_import: ["": 20]>'
FLOAT = f"""{HEAD} g (float[1, 4, 8, 8] x, float[4, 1, 3, 3] w) => (float[1, 4, 6, 6] y) {{
    [conv] c = Conv <group = 4> (x, w)
    [swish] h = HardSwish (c)
    [max] y = MaxPool <kernel_shape = [1, 1]> (h)
}}"""
QUANTIZED = f"""{HEAD} g (float[1, 4, 8, 8] x, float[4, 1, 3, 3] w, float s) => (float[1, 4, 6, 6] y) {{
    [q0] q = QuantizeLinear (x, s)
    [d0] d = DequantizeLinear (q, s)
    [conv] c = Conv <group = 4> (d, w)
    [q1] cq = QuantizeLinear (c, s)
    [d1] cd = DequantizeLinear (cq, s)
    [swish] h = HardSwish (cd)
    [q2] hq = QuantizeLinear (h, s)
    [d2] hd = DequantizeLinear (hq, s)
    [max] m = MaxPool <kernel_shape = [1, 1]> (hd)
    [q3] mq = QuantizeLinear (m, s)
    [d3] y = DequantizeLinear (mq, s)
}}"""


def found(floating, quantized, integer=("conv", "max")):
    models = [ir.from_onnx_text(text) for text in (FLOAT, QUANTIZED)]
    return list(slower_operators(*models, integer, floating, quantized))


def test_conversions_belong_to_the_operator_between_them() -> None:
    times = {"conv": 20.0, "d1": 5.0, "swish": 10.0, "q2": 6.0, "max": 9.0}
    assert found({"conv": 30.0, "swish": 8.0, "max": 9.0}, times) == [
        SlowerOperators("HardSwish between integer layers", 8.0, 21.0)
    ]


def test_what_the_plan_calls_integer_may_be_computed_in_float() -> None:
    times = {"conv": 20.0, "d1": 5.0, "swish": 10.0, "q2": 6.0, "max": 9.0}
    (one,) = found({"conv": 30.0, "swish": 8.0, "max": 9.0}, times, ("conv", "swish", "max"))
    assert one == SlowerOperators("HardSwish between integer layers", 8.0, 21.0)


def test_kernels_that_are_slower_in_integers_and_both_ends_of_the_model() -> None:
    times = {"q0": 7.0, "conv": 50.0, "swish": 8.0, "max": 9.0, "d3": 30.0}
    assert found({"conv": 30.0, "swish": 8.0, "max": 9.0}, times) == [
        SlowerOperators(OUTPUT_CONVERSION, 0.0, 30.0),
        SlowerOperators("depthwise Conv in integers", 30.0, 50.0),
        SlowerOperators(INPUT_CONVERSION, 0.0, 7.0),
    ]


@pytest.mark.parametrize(("swish", "count"), [(8.0, 0), (9.0, 0), (40.0, 1)])
def test_what_is_within_the_error_is_no_cause(swish: float, count: int) -> None:
    assert len(found({"conv": 30.0, "swish": 8.0}, {"conv": 20.0, "swish": swish})) == count
