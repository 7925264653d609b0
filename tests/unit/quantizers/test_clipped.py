import pytest
import torch

from ptq_cli.quantizers.straight_through import clipped


@pytest.mark.parametrize("low", [None, torch.tensor(-1.0)])
def test_gradient_passes_between_the_edges(low):
    beyond = 1 + 2**-23
    x = torch.tensor([-beyond, -1.0, 0.0, 1.0, beyond, float("nan")], requires_grad=True)
    clipped(torch.round, x, low, torch.tensor(1.0)).backward(torch.full((6,), 2.0))
    assert x.grad.tolist() == [0.0, 2.0, 2.0, 2.0, 0.0, 0.0]


def test_parameters_get_none():
    x, high, scale = (torch.ones(2, requires_grad=True) for _ in range(3))
    clipped(torch.mul, x, None, high, scale).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert high.grad is None and scale.grad is None
