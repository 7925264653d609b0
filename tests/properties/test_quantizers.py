"""What holds for every tensor, every number of bits and every amax."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptq_cli.core import arithmetic
from ptq_cli.core.formats import IntegerFormat, PerAxis
from ptq_cli.quantizers import straight_through
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize, fake_quantize_affine, quantize

bits = st.integers(2, 8)
amaxes = st.floats(2.0**-23, 2.0**100, width=32)
vectors = hnp.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False))
matrices = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=3, max_side=6), elements=st.floats(-1e6, 1e6, width=32)
)


@st.composite
def formats(draw):
    signed = draw(st.booleans())
    return IntegerFormat(draw(bits), signed, narrow_range=signed and draw(st.booleans()))


def options_of(format: IntegerFormat):
    return {"bits": format.bits, "unsigned": not format.signed, "narrow_range": format.narrow_range}


def fit(x, format: IntegerFormat):
    return x if format.signed else np.abs(x)


def assert_same_bits(left, right):
    np.testing.assert_array_equal(left.view(np.int32), right.view(np.int32))


@given(x=matrices, format=formats(), data=st.data())
def test_torch_is_numpy_bit_for_bit(x, format, data):
    x = fit(x, format)
    granularity = PerAxis(data.draw(st.integers(-x.ndim, x.ndim - 1)))
    amax = data.draw(hnp.arrays(np.float32, granularity.scale_shape(x.shape), elements=amaxes))
    scale = arithmetic.scale_from_amax(amax, format)
    parameters = arithmetic.QuantParameters(scale, np.zeros(scale.shape, np.int64), format, granularity)
    found = fake_quantize(torch.tensor(x), torch.tensor(amax), axis=granularity.axis, **options_of(format))
    integers, found_scale = quantize(
        torch.tensor(x), torch.tensor(amax), axis=granularity.axis, **options_of(format)
    )
    assert_same_bits(found.numpy(), arithmetic.fake_quantize(x, parameters))
    np.testing.assert_array_equal(integers.numpy(), arithmetic.quantize(x, parameters))
    assert_same_bits(found_scale.numpy(), scale)


@given(x=vectors, amax=amaxes, format=formats())
def test_error_inside_the_range_is_at_most_half_a_step(x, amax, format):
    inside = np.clip(fit(x, format), -amax, amax)
    found = fake_quantize(torch.tensor(inside), amax, **options_of(format)).double().numpy()
    step = amax / format.qmax
    assert np.all(np.abs(found - inside) <= step / 2 + 2.0**-22 * amax)


@given(x=vectors, amax=amaxes, format=formats(), seed=st.integers(0, 100))
def test_gradient_is_the_mask_times_upstream(x, amax, format, seed):
    leaf = torch.tensor(fit(x, format), requires_grad=True)
    upstream = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(seed))
    fake_quantize(leaf, amax, **options_of(format)).backward(upstream)
    mask = np.abs(leaf.detach().numpy()) <= np.float32(amax)
    np.testing.assert_array_equal(leaf.grad.numpy(), np.where(mask, upstream.numpy(), np.float32(0)))


@given(x=vectors, scale=st.floats(2.0**-60, 2.0**60, width=32), format=formats(), data=st.data())
def test_affine_gradient_passes_exactly_in_the_representable_range(x, scale, format, data):
    zero_point = data.draw(st.integers(format.qmin, format.qmax))
    low, high = (np.float32(edge - zero_point) * np.float32(scale) for edge in (format.qmin, format.qmax))
    leaf = torch.tensor(np.append(x, [low, high]).astype(np.float32), requires_grad=True)
    found = fake_quantize_affine(leaf, scale, zero_point, format)
    found.sum().backward()
    inside = (leaf.detach().numpy() >= low) & (leaf.detach().numpy() <= high)
    np.testing.assert_array_equal(leaf.grad.numpy(), inside.astype(np.float32))
    assert float(found.detach().min()) >= low
    assert float(found.detach().max()) <= high


@given(x=vectors, amax=st.floats(2.0**-20, 2.0**100, width=32), format=formats())
def test_composed_primitives_give_the_same_grid(x, amax, format):
    scale = torch.tensor(arithmetic.scale_from_amax(amax, format))
    leaf = torch.tensor(fit(x, format))
    composed = straight_through.clamp(straight_through.round(leaf / scale), format.qmin, format.qmax) * scale
    assert torch.equal(composed, fake_quantize(leaf, amax, **options_of(format)))
