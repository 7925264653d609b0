"""One arithmetic: numpy, PyTorch and ONNX Runtime without optimizations agree bit for bit."""

import functools
import itertools

import numpy as np
import onnxruntime
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from ptq_cli.core.arithmetic import QuantParameters, dequantize, fake_quantize, quantize, scale_from_amax
from ptq_cli.core.formats import INT8, INT8_NARROW, UINT8, IntegerFormat, PerAxis, PerTensor
from ptq_cli.quantizers.scaled import scaled_quantize as affine
from ptq_cli.quantizers.scaled import scaled_quantize as scaled
from tests.contracts.plain_runtime import EXTREMES, assert_same_bits, session_of
from tests.each_case import each_case

INT16, UINT16 = IntegerFormat(16, signed=True), IntegerFormat(16, signed=False)
INT4, UINT4 = IntegerFormat(4, signed=True), IntegerFormat(4, signed=False)
RUNTIME_FORMATS = [INT8, UINT8, INT16, UINT16]


@functools.cache
def session(
    format: IntegerFormat, axis: int | None, constant: tuple[int, ...] | None = None
) -> onnxruntime.InferenceSession:
    """QuantizeLinear and DequantizeLinear; the scale is an input, the zero point one or a constant."""
    integer = getattr(TensorProto, format.name.upper())
    attributes = {} if axis is None else {"axis": axis}
    inputs, constants = [("x", TensorProto.FLOAT), ("scale", TensorProto.FLOAT)], []
    if constant is None:
        inputs.append(("zero_point", integer))
    else:
        shape = [] if axis is None else [len(constant)]
        constants.append(helper.make_tensor("zero_point", integer, shape, constant))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero_point"], ["y"], **attributes),
    ]
    # 4-bit and 16-bit integers came with opset 21; 8-bit ones run in the oldest opset that ptq writes.
    opset = 13 if format.bits == 8 else 21
    return session_of(nodes, inputs, constants, opset, [("q", integer), ("y", TensorProto.FLOAT)])


def run(x, parameters: QuantParameters):
    axis = parameters.granularity.axis if isinstance(parameters.granularity, PerAxis) else None
    feeds = {
        "x": x,
        "scale": parameters.scale,
        "zero_point": parameters.zero_point.astype(parameters.format.storage),
    }
    return session(parameters.format, axis).run(None, feeds)


def in_torch(x, parameters: QuantParameters):
    axis = parameters.granularity.axis if isinstance(parameters.granularity, PerAxis) else None
    scale, zero_point = torch.tensor(parameters.scale), torch.tensor(parameters.zero_point)
    return affine.fake_quantize_affine(torch.tensor(x), scale, zero_point, parameters.format, axis).numpy()


def assert_all_agree(x, parameters: QuantParameters):
    """The three agree, and so does PyTorch's own affine quantizer."""
    integers, values = run(x, parameters)
    found = quantize(x, parameters)
    np.testing.assert_array_equal(found, integers)
    assert found.dtype == integers.dtype
    assert_same_bits(dequantize(found, parameters), values)
    assert_same_bits(in_torch(x, parameters), values)


@each_case("format", RUNTIME_FORMATS, ids=lambda format: format.name)
@each_case("shape", [(4,), (3, 17), (5, 1), (1, 5), (2, 3, 33), (4, 3, 5, 7)], ids=str)
def test_per_axis(format, shape):
    rng = np.random.default_rng(len(shape))
    for axis, magnitude in itertools.product([*range(len(shape)), -1], [4, 60]):
        granularity = PerAxis(axis)
        size = granularity.scale_shape(shape)
        scale = np.exp2(rng.uniform(-2 * magnitude, magnitude, size)).astype(np.float32)
        zero_point = rng.integers(format.qmin, format.qmax + 1, size)
        parameters = QuantParameters(scale, zero_point, format, granularity)
        steps = rng.integers(2 * format.qmin - 5, 2 * format.qmax + 5, shape) + rng.choice([0, 0.5], shape)
        x = steps.astype(np.float32) * scale.reshape(granularity.broadcast_shape(shape))
        x.reshape(-1)[: len(EXTREMES)] = EXTREMES[: x.size]
        assert_all_agree(x.astype(np.float32), parameters)


@each_case("format", RUNTIME_FORMATS, ids=lambda format: format.name)
def test_nan_is_the_one_thing_that_differs(format):
    parameters = QuantParameters(np.asarray(1.0, np.float32), np.asarray(3, np.int64), format)
    x = np.full(5, np.nan, np.float32)
    assert run(x, parameters)[0].tolist() == [format.qmin] * 5
    assert np.isnan(in_torch(x, parameters)).all()


@each_case("format", [INT4, UINT4], ids=lambda format: format.name)
@each_case("axis", [None, 0, 1])
def test_four_bits(format, axis):
    # Not beyond 2^31 steps: there ONNX Runtime 1.31 wraps to the other end along the last axis.
    granularity = PerTensor() if axis is None else PerAxis(axis)
    steps = np.arange(-40, 40).reshape(4, 20).astype(np.float32) + np.float32(0.5)
    size = granularity.scale_shape(steps.shape)
    scale = np.linspace(0.03, 0.09, int(np.prod(size))).reshape(size).astype(np.float32)
    for zero_point in range(format.qmin, format.qmax + 1):
        parameters = QuantParameters(scale, np.full(size, zero_point), format, granularity)
        x = steps * scale.reshape(granularity.broadcast_shape(steps.shape))
        # numpy has no 4-bit integers to feed, so the zero point is a constant of the graph.
        constant = tuple(np.ravel(parameters.zero_point).tolist())
        (values,) = session(format, axis, constant).run(["y"], {"x": x, "scale": scale})
        assert_same_bits(fake_quantize(x, parameters), values)
        assert_same_bits(in_torch(x, parameters), values)


finite_or_infinite = st.floats(width=32, allow_nan=False)
tensors = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=9), elements=finite_or_infinite)
positive = st.floats(2.0**-140, 2.0**120, width=32)


@given(x=tensors, scale=positive, format=st.sampled_from(RUNTIME_FORMATS), data=st.data())
def test_any_tensor(x, scale, format, data):
    zero_point = data.draw(st.integers(format.qmin, format.qmax))
    parameters = QuantParameters(np.asarray(scale, np.float32), np.asarray(zero_point), format)
    assert_all_agree(x, parameters)


@given(x=tensors, format=st.sampled_from(RUNTIME_FORMATS), data=st.data())
def test_any_tensor_per_axis(x, format, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    granularity = PerAxis(axis)
    shape = granularity.scale_shape(x.shape)
    scale = data.draw(hnp.arrays(np.float32, shape, elements=positive))
    zero_point = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(format.qmin, format.qmax)))
    assert_all_agree(x, QuantParameters(scale, zero_point, format, granularity))


@given(x=tensors, amax=st.floats(2.0**-23, 2.0**120, width=32), format=st.sampled_from([INT8, UINT8]))
def test_scaled_quantizer_is_what_the_runtime_computes(x, amax, format):
    x = x if format.signed else np.abs(x)
    parameters = QuantParameters(scale_from_amax(amax, format), np.asarray(0, np.int64), format)
    integers, values = run(x, parameters)
    options = {"unsigned": not format.signed, "narrow_range": False}
    assert_same_bits(scaled.fake_quantize(torch.tensor(x), amax, **options).numpy(), values)
    found, scale = scaled.quantize(torch.tensor(x), amax, **options)
    np.testing.assert_array_equal(found.numpy(), integers)
    assert_same_bits(scale.numpy(), parameters.scale)


@given(x=tensors, data=st.data())
def test_narrow_weights_are_what_the_runtime_dequantizes(x, data):
    granularity = PerAxis(data.draw(st.integers(0, x.ndim - 1)))
    # The quantizers of PyTorch take a smaller amax for 0, as NVIDIA's do; a file has it down to 2^-110.
    bound = st.just(0.0) | st.floats(2.0**-23, 2.0**100, width=32)
    bounds = hnp.arrays(np.float32, granularity.scale_shape(x.shape), elements=bound)
    amax = data.draw(bounds)
    zero = np.zeros(amax.shape, np.int64)
    parameters = QuantParameters(scale_from_amax(amax, INT8_NARROW), zero, INT8_NARROW, granularity)
    # A weight never exceeds its own amax; only there does the zero channel's scale of 1 give 0.
    x = np.clip(x, *(sign * amax.reshape(granularity.broadcast_shape(x.shape)) for sign in (-1, 1)))
    _, values = run(x, parameters)
    assert_same_bits(fake_quantize(x, parameters), values)
    found = scaled.fake_quantize(torch.tensor(x), torch.tensor(amax), axis=granularity.axis)
    assert_same_bits(found.numpy(), values)
