import numpy as np
import pytest

from ptq_cli.collectors.max import MaxCollector, as_float32
from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.granularity import PerAxis

RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=(4, 3, 5, 6)).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -3])
def test_range_per_axis_is_that_of_each_index(axis):
    collector = MaxCollector(PerAxis(axis))

    assert collector.update(IMAGES) and collector.update(IMAGES * 2)

    moved = np.moveaxis(IMAGES, axis, 0).reshape(IMAGES.shape[axis], -1) * 2
    found = collector.statistics()
    np.testing.assert_array_equal(found.minimum, moved.min(axis=1))
    np.testing.assert_array_equal(found.maximum, moved.max(axis=1))
    assert found.axis == axis and found.count == 2 * IMAGES.size and found.zeros == 0
    assert found.minimum.dtype == found.maximum.dtype == np.float32
    assert found.low == 2 * IMAGES.min() and found.high == 2 * IMAGES.max()


def test_range_per_tensor_has_no_axis():
    collector = MaxCollector()

    assert collector.update(IMAGES)

    found = collector.statistics()
    assert (found.minimum, found.maximum) == (IMAGES.min(), IMAGES.max())
    assert found.minimum.shape == () and found.axis is None and found.histogram is None


@pytest.mark.parametrize(("first", "second"), [(3, 4), (3, 1), (1, 3)])
def test_changed_number_of_channels_is_refused(first, second):
    collector = MaxCollector(PerAxis(1))
    collector.update(np.ones((2, first), np.float32))

    with pytest.raises(ValueError, match=f"^axis 1 had {first} channels and now has {second}$"):
        collector.update(np.ones((2, second), np.float32))
    assert collector.statistics().count == 2 * first


def test_tensor_without_the_axis_is_refused():
    with pytest.raises(RecipeValueError, match=r"axis 2 is outside a tensor of shape \(2, 3\)"):
        MaxCollector(PerAxis(2)).update(np.ones((2, 3), np.float32))


def test_empty_array_does_not_set_the_number_of_channels():
    collector = MaxCollector(PerAxis(1))

    assert collector.update(np.ones((0, 7), np.float32)) and collector.update(np.ones((2, 3), np.float32))

    assert collector.statistics().maximum.tolist() == [1.0, 1.0, 1.0]


def test_no_value_has_an_empty_range():
    per_tensor, per_axis = MaxCollector().statistics(), MaxCollector(PerAxis(0)).statistics()

    assert (per_tensor.minimum.tolist(), per_tensor.maximum.tolist()) == (np.inf, -np.inf)
    assert per_axis.minimum.shape == per_axis.maximum.shape == (0,)
    assert (per_tensor.low, per_tensor.high, per_axis.low, per_axis.high) == (0, 0, 0, 0)


@pytest.mark.parametrize("order", [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]])
def test_minus_zero_leaves_no_trace(order):
    collector = MaxCollector()
    for value in order:
        collector.update(np.array([value], np.float32))

    found = collector.statistics()
    assert not np.signbit(found.minimum) and not np.signbit(found.maximum)


def test_update_keeps_no_view_of_the_array():
    array = np.ones(1, np.float32)
    collector = MaxCollector(PerAxis(0))
    collector.update(array)

    array[:] = 99

    assert collector.statistics().maximum.tolist() == [1.0]


def test_float32_is_not_copied():
    assert as_float32(IMAGES) is IMAGES
