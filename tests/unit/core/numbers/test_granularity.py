import pytest

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.formats import PerAxis, PerTensor
from tests.each_case import each_case


def test_per_tensor():
    assert PerTensor().scale_shape((2, 3)) == ()
    assert PerTensor().broadcast_shape((2, 3)) == ()
    assert PerTensor().reduced_axes((2, 3, 4)) == (0, 1, 2)
    assert PerTensor().reduced_axes(()) == ()


@each_case(
    "axis, scale, broadcast, reduced",
    [
        (0, (4,), (4, 1, 1), (1, 2)),
        (1, (3,), (1, 3, 1), (0, 2)),
        (2, (2,), (1, 1, 2), (0, 1)),
        (-1, (2,), (1, 1, 2), (0, 1)),
        (-3, (4,), (4, 1, 1), (1, 2)),
    ],
)
def test_per_axis(axis, scale, broadcast, reduced):
    shape = (4, 3, 2)
    assert PerAxis(axis).scale_shape(shape) == scale
    assert PerAxis(axis).broadcast_shape(shape) == broadcast
    assert PerAxis(axis).reduced_axes(shape) == reduced


@each_case("method", ["scale_shape", "broadcast_shape", "reduced_axes"])
@each_case("axis, shape", [(2, (4, 3)), (-3, (4, 3)), (0, ())])
def test_refuses_an_axis_that_is_not_there(method, axis, shape):
    with pytest.raises(RecipeValueError, match=rf"axis {axis} is outside a tensor of shape"):
        getattr(PerAxis(axis), method)(shape)
