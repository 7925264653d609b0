import pytest
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.dorefa import (
    affine_k_bit_quantize,
    clamp_by_linear,
    encode_dorefa,
    k_bit_quantize,
    k_bit_quantize_forward,
)
from tests.each_case import each_case


@each_case("k", [1, 2, 4, 8])
def test_levels_are_evenly_spaced_from_0_to_1(k):
    levels = k_bit_quantize(torch.linspace(0, 1, 5000), k).unique()
    assert torch.equal(levels, torch.arange(2.0**k) / (2**k - 1))


@each_case(
    "k, error",
    [
        (0, QuantizerValueError),
        (-3, QuantizerValueError),
        (0.5, QuantizerValueError),
        (1.5, QuantizerTypeError),
    ],
)
@each_case("function", [k_bit_quantize, k_bit_quantize_forward])
def test_bits_that_are_none(function, k, error):
    with pytest.raises(error):
        function(torch.ones(2), k)


def test_a_large_constant_has_no_place_between_0_and_1():
    assert torch.isnan(clamp_by_linear(torch.full((2,), 1000.0))).all()
    assert clamp_by_linear(torch.full((2,), 1000.0), eps=1.0).tolist() == [0.0, 0.0]


def test_nothing_has_no_extremes():
    with pytest.raises(QuantizerShapeError, match=r"a tensor of shape \(0,\) has no smallest"):
        clamp_by_linear(torch.zeros(0))


@each_case("k", range(1, 8))
def test_the_levels_are_those_of_the_affine_quantizer(k):
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(k))
    amax = torch.tensor(1.7)
    found = encode_dorefa(x, amax / (2**k - 1), k).values()
    position = (x.clamp(-amax, amax) + amax) / (2 * amax)
    expected = affine_k_bit_quantize(position, k, 2 * amax, -amax)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-6)
    assert len(found.unique()) == 2**k


def test_one_scale_for_each_index_along_an_axis():
    x = torch.tensor([[3.0, -3.0], [0.03, 0.01]])
    found = encode_dorefa(x, torch.tensor([1.0, 0.01]), 2, axis=0)
    assert found.table[found.indices.long()].tolist() == [[3, -3], [3, 1]]
    assert found.values().tolist() == [[3.0, -3.0], [pytest.approx(0.03), pytest.approx(0.01)]]


def test_infinities_saturate():
    x = torch.tensor([float("inf"), -float("inf")])
    assert encode_dorefa(x, torch.tensor(0.5), 3).values().tolist() == [3.5, -3.5]


@each_case(
    "x, scale, k, error",
    [
        (torch.ones(2), torch.tensor(1.0), 8, QuantizerValueError),
        (torch.ones(2), torch.tensor(1.0), 0, QuantizerValueError),
        (torch.ones(2), torch.tensor(0.0), 4, QuantizerValueError),
        (torch.ones(2), torch.tensor(float("inf")), 4, QuantizerValueError),
        (torch.tensor([float("nan")]), torch.tensor(1.0), 4, QuantizerValueError),
        (torch.ones(2, dtype=torch.int32), torch.tensor(1.0), 4, QuantizerTypeError),
        (torch.ones(2), torch.ones(3), 4, QuantizerShapeError),
    ],
)
def test_what_cannot_be_encoded_is_refused(x, scale, k, error):
    with pytest.raises(error):
        encode_dorefa(x, scale, k)
