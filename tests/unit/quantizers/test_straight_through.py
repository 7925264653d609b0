import pytest
import torch

from ptq_cli.quantizers import straight_through
from ptq_cli.quantizers.straight_through import (
    clamp_backward,
    pass_where,
    round_backward,
)

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (straight_through.round, [-2.0, 0.0, 0.0, 0.0, 2.0, 2.0]),
        (straight_through.ceil, [-2.0, 0.0, 0.0, 1.0, 2.0, 3.0]),
        (straight_through.floor, [-3.0, -1.0, 0.0, 0.0, 1.0, 2.0]),
    ],
)
def test_steps(step, expected):
    x = torch.tensor([-2.5, -0.5, 0.0, 0.5, 1.5, 2.5], requires_grad=True)
    y = step(x)
    y.backward(torch.arange(6.0))
    assert y.tolist() == expected
    assert x.grad.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_clamp_passes_at_both_edges_and_not_beyond():
    x = torch.tensor([-1.5, -1.0, 0.2, 2.0, 2.5, INF, NAN], requires_grad=True)
    y = straight_through.clamp(x, -1.0, 2.0)
    y.backward(torch.full((7,), 3.0))
    assert y[:6].tolist() == pytest.approx([-1.0, -1.0, 0.2, 2.0, 2.0, 2.0])
    assert torch.isnan(y[6])
    assert x.grad.tolist() == [0.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0]


def test_backward_functions():
    gradient = torch.tensor([1.0, INF, NAN])
    assert round_backward(gradient) is gradient
    assert clamp_backward(gradient, torch.tensor([0.0, 2.0, 2.0]), -1.0, 1.0).tolist() == [1.0, 0.0, 0.0]
    assert pass_where(torch.tensor([True, False, False]), gradient).tolist() == [1.0, 0.0, 0.0]
