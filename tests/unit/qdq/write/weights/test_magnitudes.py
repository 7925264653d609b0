"""Magnitudes of weights are those that numpy finds in the whole array at once."""

import numpy as np
import pytest

from ptq_cli.core.errors import AxisError
from ptq_cli.core.formats import PerAxis, PerTensor
from ptq_cli.qdq.write import outliers as magnitudes
from ptq_cli.qdq.write.outliers import magnitudes_of
from tests.each_case import each_case

SHAPES = [(), (5,), (7, 3), (8, 4, 3, 3), (2, 6, 5), (0, 3), (3, 0)]
CASES = [(shape, axis) for shape in SHAPES for axis in (None, *range(len(shape)))]


def weight_of(shape):
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return np.where(np.abs(weight) < 0.5, np.float32(0), weight)


@each_case("block", [1, 10, 1 << 17])
@each_case("shape, axis", CASES)
def test_blocks_of_any_size_give_what_the_whole_gives(monkeypatch, shape, axis, block):
    monkeypatch.setattr(magnitudes, "BLOCK", block)
    weight, granularity = weight_of(shape), PerTensor() if axis is None else PerAxis(axis)
    axes = granularity.reduced_axes(shape)
    found = magnitudes_of(weight, granularity)
    magnitude = np.abs(weight)
    assert np.array_equal(found.largest, magnitude.max(axis=axes, initial=0.0))
    assert np.array_equal(found.nonzero, np.count_nonzero(magnitude, axis=axes))
    np.testing.assert_allclose(found.total, magnitude.sum(axis=axes, dtype=np.float64), rtol=1e-6)
    shapes = {np.shape(item) for item in (found.largest, found.total, found.nonzero)}
    assert shapes == {granularity.scale_shape(shape)}
    assert found.is_finite


@each_case("value", [np.nan, np.inf, -np.inf])
@each_case("axis", [None, 0, 1])
def test_one_value_that_is_no_number_is_seen(value, axis):
    weight = weight_of((9, 4))
    weight[6, 2] = value
    assert not magnitudes_of(weight, PerTensor() if axis is None else PerAxis(axis)).is_finite


def test_channels_next_to_nothing_count_as_zero():
    weight = np.float32([[0.0, 0.0], [2.0**-24, 0.0], [2.0**-23, 0.0]])
    assert magnitudes_of(weight, PerAxis(0)).zero.tolist() == [True, True, False]


def test_an_axis_that_is_not_there_is_refused():
    with pytest.raises(AxisError, match="axis 2 is outside a tensor of shape"):
        magnitudes_of(weight_of((2, 3)), PerAxis(2))
