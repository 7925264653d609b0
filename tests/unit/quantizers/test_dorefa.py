import pytest
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.dorefa import (
    affine_k_bit_quantize,
    clamp_by_linear,
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


def test_affine_gradients_are_those_of_the_formula():
    x, w, b = (torch.tensor(values, requires_grad=True) for values in ([0.1, 0.6], [2.0, -1.0], [0.5, 0.5]))
    affine_k_bit_quantize(x, 1, w, b).backward(torch.tensor([1.0, 3.0]))
    assert x.grad.tolist() == [2.0, -3.0]
    assert w.grad.tolist() == [0.0, 3.0]
    assert b.grad.tolist() == [1.0, 3.0]


def test_linear_map_has_its_numerical_gradient():
    x = torch.tensor([-1.0, 0.2, 2.0], requires_grad=True)
    upstream = torch.tensor([0.3, -1.0, 2.0])
    clamp_by_linear(x).backward(upstream)
    wide, step = x.detach().double(), 1e-6

    def formula(value):
        return ((value - value.min()) / (value.max() + 1e-5 - value.min()) * upstream).sum()

    for index in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[index] = step
        numeric = (formula(wide + shift) - formula(wide - shift)) / (2 * step)
        assert x.grad[index].item() == pytest.approx(numeric.item(), abs=1e-5)


def test_a_large_constant_has_no_place_between_0_and_1():
    assert torch.isnan(clamp_by_linear(torch.full((2,), 1000.0))).all()
    assert clamp_by_linear(torch.full((2,), 1000.0), eps=1.0).tolist() == [0.0, 0.0]


def test_nothing_has_no_extremes():
    with pytest.raises(QuantizerShapeError, match=r"a tensor of shape \(0,\) has no smallest"):
        clamp_by_linear(torch.zeros(0))
