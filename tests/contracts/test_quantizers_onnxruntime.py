"""The scaled quantizer is what ONNX Runtime computes, for every number of bits, as it is exported.

A format that does not fill its ONNX type has bounds in front of the QuantizeLinear; so has one of 4 bits.
"""

import functools

import numpy as np
import onnxruntime
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.grid import granularity_of
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize, quantize
from tests.contracts.plain_runtime import EXTREMES, assert_same_bits, session_of
from tests.day import examples

steady = examples(200)

BITS = [2, 3, 4, 5, 6, 7, 8, 16]


def stored_bits(bits: int) -> int:
    return next(width for width in (4, 8, 16) if bits <= width)


@functools.cache
def session(signed: bool, width: int, bounded: bool, axis: int | None) -> onnxruntime.InferenceSession:
    integer = getattr(TensorProto, f"{'INT' if signed else 'UINT'}{width}")
    attributes = {} if axis is None else {"axis": axis}
    inputs, nodes, source = ["x", "scale"], [], "x"
    if bounded and axis is None:
        inputs += ["low", "high"]
        nodes, source = [helper.make_node("Clip", ["x", "low", "high"], ["bounded"])], "bounded"
    elif bounded:
        inputs += ["low", "high"]
        nodes = [
            helper.make_node("Max", ["x", "low"], ["above"]),
            helper.make_node("Min", ["above", "high"], ["bounded"]),
        ]
        source = "bounded"
    nodes += [
        helper.make_node("QuantizeLinear", [source, "scale"], ["q"], output_dtype=integer, **attributes),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"], **attributes),
    ]
    return session_of(nodes, [(name, TensorProto.FLOAT) for name in inputs])


def run(x, scale, format: IntegerFormat, axis: int | None):
    width = stored_bits(format.bits)
    full = IntegerFormat(width, format.signed)
    bounded = width == 4 or (full.qmin, full.qmax) != (format.qmin, format.qmax)
    feeds = {"x": x, "scale": scale}
    if bounded:
        shape = granularity_of(axis).broadcast_shape(x.shape)
        with np.errstate(over="ignore"):
            for name, integer in (("low", format.qmin), ("high", format.qmax)):
                feeds[name] = np.asarray(scale * np.float32(integer), np.float32).reshape(shape)
    return session(format.signed, width, bounded, axis).run(None, feeds)[0]


@st.composite
def problems(draw):
    """A format, amax, and values on the grid, at ties and beside them, at the edges, and of every size."""
    signed = draw(st.booleans())
    format = IntegerFormat(draw(st.sampled_from(BITS)), signed, signed and draw(st.booleans()))
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    axis = draw(st.one_of(st.none(), st.integers(0, len(shape) - 1)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = granularity_of(axis).scale_shape(shape)
    amax = np.exp2(rng.uniform(-22, draw(st.sampled_from([4, 100])), size))
    amax = np.asarray(amax, np.float32)
    step = np.broadcast_to(
        (amax / np.float32(format.qmax)).reshape(granularity_of(axis).broadcast_shape(shape)), shape
    )
    steps = rng.integers(2 * format.qmin - 3, 2 * format.qmax + 3, shape).astype(np.float32)
    kinds = [steps, steps + np.float32(0.5), steps * rng.random(shape, np.float32)]
    with np.errstate(over="ignore"):
        points = [(kind * step).astype(np.float32) for kind in kinds]
        near = [np.nextafter(points[1], np.float32(sign * np.inf)) for sign in (1, -1)]
        edge = np.broadcast_to(amax.reshape(granularity_of(axis).broadcast_shape(shape)), shape)
        odd = rng.choice(np.array(EXTREMES, np.float32), shape)
        sizes = (np.exp2(rng.uniform(-149, 127.9, shape)) * rng.choice([-1, 1], shape)).astype(np.float32)
    pools = [*points, *near, edge, -edge, np.nextafter(edge, np.float32(np.inf)), odd, sizes]
    x = np.choose(rng.integers(0, len(pools), shape), pools)
    return format, axis, amax, x if signed else np.abs(x)


@steady
@given(problems())
def test_fake_quantize_is_quantize_and_dequantize_of_the_runtime_bit_for_bit(problem):
    format, axis, amax, x = problem
    options = {"bits": format.bits, "unsigned": not format.signed, "narrow_range": format.narrow_range}
    found = fake_quantize(torch.tensor(x), torch.tensor(amax), axis=axis, **options).numpy()
    integers, scale = quantize(torch.tensor(x), torch.tensor(amax), axis=axis, **options)
    expected = run(x, scale.numpy(), format, axis)
    assert_same_bits(found, expected)
    laid_out = scale.reshape(granularity_of(axis).broadcast_shape(x.shape))
    np.testing.assert_array_equal(
        (integers.float() * laid_out).numpy().view(np.int32), expected.view(np.int32)
    )
    assert int(integers.long().min()) >= format.qmin and int(integers.long().max()) <= format.qmax
