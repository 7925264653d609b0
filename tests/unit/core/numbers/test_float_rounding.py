"""Rounding to E4M3 and E2M1 equals that of ONNX's reference evaluator and of ml_dtypes, bit for bit."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ptq_cli.core.arithmetic import round_to_float
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN

EVERY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
NUMBERS = EVERY_HALF[~np.isnan(EVERY_HALF)]
FORMATS = pytest.mark.parametrize("format", [FLOAT8_E4M3FN, FLOAT4_E2M1], ids=lambda item: item.name)


def _reference(values, format, opset):
    zero = helper.make_tensor("zero", TensorProto.DataType.Value(format.name.upper()), [], [0.0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "one", "zero"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy"]
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], [one, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, {"x": values})[0]


@FORMATS
def test_every_float16_is_rounded_as_by_onnx_and_ml_dtypes(format):
    found = round_to_float(NUMBERS, format)
    # ml_dtypes makes NaN of what E4M3 cannot hold, where ONNX saturates.
    bounded = np.clip(NUMBERS, format.qmin, format.qmax)
    own = bounded.astype(format.storage).astype(np.float32)
    assert np.array_equal(found.view(np.uint32), own.view(np.uint32))
    # Of -0 alone, ONNX's evaluator loses the sign in E2M1.
    finite = NUMBERS[np.isfinite(NUMBERS) & (NUMBERS != 0)]
    reference = _reference(finite, format, 23)
    assert np.array_equal(round_to_float(finite, format).view(np.uint32), reference.view(np.uint32))


@FORMATS
def test_every_value_of_a_format_is_kept(format):
    codes = np.arange(1 << format.bits, dtype=np.uint8)
    values = codes.view(format.storage) if format.bits == 8 else codes.astype(np.uint8).view(format.storage)
    values = values.astype(np.float32)
    values = values[~np.isnan(values)]
    assert np.array_equal(round_to_float(values, format), values)
    assert values.max() == format.qmax and ml_dtypes.finfo(format.storage).max == format.qmax


@FORMATS
def test_what_is_beyond_saturates_and_nan_stays(format):
    found = round_to_float(np.float32([np.inf, -np.inf, 1e30, np.nan, -0.0]), format)
    assert found[:3].tolist() == [format.qmax, format.qmin, format.qmax]
    assert np.isnan(found[3]) and np.signbit(found[4])
