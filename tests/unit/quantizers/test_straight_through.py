import pytest
import torch

from ptq_cli.core.errors import UsageError
from ptq_cli.quantizers.straight_through import clamp_straight_through, pass_where, round_straight_through

INF, NAN = float("inf"), float("nan")


def test_round_goes_half_to_even_and_passes_the_upstream_gradient():
    x = torch.tensor([-2.5, -0.5, 0.5, 1.5, 2.5, INF], requires_grad=True)
    y = round_straight_through(x)
    upstream = torch.tensor([1.0, -2.0, 3.0, 0.0, 5.0, 6.0])
    y.backward(upstream)
    assert y.tolist() == [-2.0, 0.0, 0.0, 2.0, 2.0, INF]
    assert torch.equal(x.grad, upstream)


def test_clamp_passes_the_gradient_inside_the_closed_interval():
    below, above = torch.nextafter(torch.tensor([-1.0, 1.0]), torch.tensor([-2.0, 2.0])).tolist()
    x = torch.tensor([-INF, below, -1.0, 0.0, 1.0, above, INF, NAN], requires_grad=True)
    y = clamp_straight_through(x, -1.0, 1.0)
    y.backward(torch.full((8,), 3.0))
    assert y[:-1].tolist() == [-1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0]
    assert torch.isnan(y[-1])
    assert x.grad.tolist() == [0.0, 0.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0]


def test_clamp_to_one_value():
    assert clamp_straight_through(torch.tensor([1.0, 3.0]), 2.0, 2.0).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("low", "high"), [(1.0, -1.0), (NAN, 1.0)])
def test_clamp_refuses_unordered_bounds(low, high):
    with pytest.raises(UsageError, match="bounds must be ordered"):
        clamp_straight_through(torch.zeros(1), low, high)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept(dtype):
    x = torch.ones(3, dtype=dtype, requires_grad=True)
    y = clamp_straight_through(round_straight_through(x), 0.0, 2.0)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype) == (dtype, dtype)


def test_blocked_gradient_is_zero_even_if_it_is_not_finite():
    found = pass_where(torch.tensor([False, False, True]), torch.tensor([INF, NAN, -2.0]))
    assert found.tolist() == [0.0, 0.0, -2.0]
