import pytest
import torch

from ptq_cli.core.errors import AxisError
from ptq_cli.quantizers.scaled.tensor_quantizer import reduce_amax
from tests.each_case import each_case


def test_gradient_is_not_followed():
    assert not reduce_amax(torch.ones(2, requires_grad=True)).requires_grad


@pytest.mark.parametrize(("axis", "shape"), [(0, (1, 3)), (1, (0, 1)), (None, ())])
def test_no_values_have_the_magnitude_0(axis, shape):
    found = reduce_amax(torch.zeros(0, 3), axis)
    assert found.shape == shape
    assert torch.equal(found, torch.zeros(shape))


def test_nan_is_the_largest():
    assert torch.isnan(reduce_amax(torch.tensor([1.0, float("nan")])))


@each_case("axis", [2, -3, (0, 5), (0, 0), (1, -1)])
def test_axes_that_are_not_there_or_there_twice(axis):
    with pytest.raises(AxisError) as caught:
        reduce_amax(torch.ones(2, 3), axis)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, IndexError)
