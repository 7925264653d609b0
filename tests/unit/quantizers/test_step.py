import pytest
import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.quantizers.step import multi_level_spike_count, step_quantize, step_quantize_forward


@pytest.mark.parametrize("step", [0.25, 2.0, -0.25])
def test_every_value_goes_to_the_nearest_multiple(step):
    x = torch.linspace(-5, 5, 1001)
    found = step_quantize(x, step)
    assert torch.equal(found / step, torch.round(found / step))
    assert torch.all((found - x).abs() <= abs(step) / 2)
    assert torch.equal(found, step_quantize_forward(x, step))


def test_count_below_1():
    with pytest.raises(QuantizerValueError, match="a largest count of 0 is too small"):
        multi_level_spike_count(torch.ones(1), 0)
