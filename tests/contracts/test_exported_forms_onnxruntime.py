"""Fixed point and centers: ONNX Runtime without optimizations gives the same bits from the exported form."""

import functools

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.quantizers.assign import quantize_to_centers
from ptq_cli.quantizers.automatic_scale import AutoScale
from ptq_cli.quantizers.center_indices import encode_centers
from ptq_cli.quantizers.fixed_point import FixedPointFormat, fixed_point, quantize_fixed_point
from tests.contracts.plain_runtime import EXTREMES, assert_same_bits, session_of
from tests.each_case import each_case

BITS = [2, 3, 4, 5, 6, 7, 8, 16]


@functools.cache
def fake_quantize_session(type_name, clips):
    """Clip where the format is narrower than the type, then QuantizeLinear and DequantizeLinear."""
    dtype = getattr(TensorProto, type_name.upper())
    zero_point = helper.make_tensor("zero_point", dtype, [], [0])
    clip = [helper.make_node("Clip", ["x", "low", "high"], ["inside"])] if clips else []
    nodes = [
        *clip,
        helper.make_node("QuantizeLinear", ["inside" if clips else "x", "step", "zero_point"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero_point"], ["y"]),
    ]
    names = ["x", "step", "scale", *(["low", "high"] if clips else [])]
    return session_of(nodes, [(name, TensorProto.FLOAT) for name in names], [zero_point], opset=21)


def in_runtime(x, found, format):
    native = {(4, True): "int4", (4, False): "uint4"}.get((format.bits, format.signed))
    name = native or str(format.storage)
    whole = {"int4": -8, "int8": -128, "int16": -32768}.get(name, 0)
    fills = (format.qmin, format.qmax) == (whole, whole + (1 << int(name.lstrip("uint"))) - 1)
    # Beyond 2^31 steps (u)int4 wraps to the other end without a Clip.
    full = fills and native is None
    feeds = {"x": x, "step": np.array(found.step, np.float32), "scale": found.scale.numpy()}
    if not full:
        low, high = format.qmin * found.step, format.qmax * found.step
        feeds |= {"low": np.array(low, np.float32), "high": np.array(high, np.float32)}
    return fake_quantize_session(name, not full).run(None, feeds)[0]


def probes(format):
    """Grid points, ties, and their neighbors, over twice the range, and extremes."""
    span = format.qmax - format.qmin
    steps = np.unique(np.linspace(-span - 3, span + 3, 2 * min(span, 400) + 7).astype(np.int64))
    points = np.concatenate([steps, steps + 0.5]).astype(np.float32) * np.float32(format.step)
    near = [np.nextafter(points, np.float32(edge)) for edge in (np.inf, -np.inf)]
    return np.concatenate([points, *near, np.array(EXTREMES, np.float32)]).astype(np.float32)


@each_case("bits", BITS)
@each_case("keep_negative", [True, False])
@each_case("symmetric", [False, True])
@each_case("integer", [-3, 0, 5])
def test_fixed_point_is_quantize_linear_at_ties_edges_and_extremes(bits, keep_negative, symmetric, integer):
    format = FixedPointFormat(bits, integer, symmetric, keep_negative)
    x = probes(format)
    arguments = (bits, integer, symmetric, keep_negative)
    found = quantize_fixed_point(torch.tensor(x), *arguments)
    expected = in_runtime(x, found, found.format)
    assert_same_bits(fixed_point(torch.tensor(x), *arguments).numpy(), expected)


@given(
    x=hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False)),
    bits=st.sampled_from(BITS),
    integer=st.integers(-110, 120),
    symmetric=st.booleans(),
    keep_negative=st.booleans(),
    alpha=st.none() | st.integers(-8, 8).map(lambda exponent: 2.0**exponent),
)
@example(np.float32([-0.0, 1e-45]), 8, -110, False, True, None)
@example(np.float32([1.0]), 4, -27, False, False, None)
def test_fixed_point_is_quantize_linear_for_any_input(x, bits, integer, symmetric, keep_negative, alpha):
    if not -126 <= integer - bits + keep_negative + np.log2(alpha or 1) <= 110:
        return
    arguments = (bits, integer, symmetric, keep_negative, alpha)
    found = quantize_fixed_point(torch.tensor(x), *arguments)
    assert_same_bits(fixed_point(torch.tensor(x), *arguments).numpy(), in_runtime(x, found, found.format))


@functools.cache
def dequantize_session(type_name, axis):
    dtype = getattr(TensorProto, type_name.upper())
    attributes = {} if axis is None else {"axis": axis}
    nodes = [helper.make_node("DequantizeLinear", ["q", "scale"], ["y"], **attributes)]
    return session_of(nodes, [("q", dtype), ("scale", TensorProto.FLOAT)], [], opset=21)


@given(
    x=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.floats(-9, 9, width=32)
    ),
    bits=st.sampled_from(BITS),
    axis=st.sampled_from([None, 0, 1]),
    keep_negative=st.booleans(),
)
def test_weights_with_a_found_power_of_two_are_dequantize_linear(x, bits, axis, keep_negative):
    auto = AutoScale(axis=axis)
    arguments = (bits, 1, False, keep_negative, "auto_po2")
    found = quantize_fixed_point(torch.tensor(x), *arguments, auto=auto)
    feeds = {"q": found.integers.numpy(), "scale": found.scale.numpy()}
    (expected,) = dequantize_session(str(found.format.storage), found.axis).run(None, feeds)
    assert_same_bits(fixed_point(torch.tensor(x), *arguments, auto=auto).numpy(), expected)


def gather_session(found):
    """Cast, Add where there are several codebooks, Gather."""
    indices = TensorProto(
        data_type=TensorProto.UINT4 if found.bits == 4 else TensorProto.UINT8,
        dims=found.indices.shape,
        name="indices",
        raw_data=found.packed().numpy().tobytes(),
    )
    constants = [
        indices,
        numpy_helper.from_array(found.codebook.reshape(-1).numpy(), "codebook"),
        numpy_helper.from_array(found.offsets().numpy(), "offsets"),
    ]
    nodes = [
        helper.make_node("Cast", ["indices"], ["numbers"], to=TensorProto.INT32),
        helper.make_node("Add", ["numbers", "offsets"], ["positions"]),
        helper.make_node("Gather", ["codebook", "positions"], ["y"]),
    ]
    return session_of(nodes, [], constants, opset=21)


@each_case("count", [2, 16, 17, 256])
@each_case("axis", [None, 0, 1])
def test_indices_and_codebook_are_gather(count, axis):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 3, 5, generator=generator)
    shape = (count,) if axis is None else (x.shape[axis], count)
    centers = torch.randn(shape, generator=generator)
    (values,) = gather_session(encode_centers(x, centers, axis=axis)).run(None, {})
    assert_same_bits(quantize_to_centers(x, centers, axis=axis).numpy(), values)
