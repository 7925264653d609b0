"""Magnitudes of weights are those that numpy finds in the whole array at once."""

from dataclasses import replace

import numpy as np
import pytest

from ptq_cli.core.arithmetic import QuantParameters, scale_from_amax
from ptq_cli.core.errors import AxisError
from ptq_cli.core.formats import INT8_NARROW, PerAxis, PerTensor
from ptq_cli.qdq.write import outliers as magnitudes
from ptq_cli.qdq.write.outliers import LargeChannel, Outlier, find_outlier, magnitudes_of
from ptq_cli.shown.export_lines import outlier_line
from tests.each_case import each_case

SHAPES = [(), (5,), (7, 3), (8, 4, 3, 3), (2, 6, 5), (0, 3), (3, 0)]
CASES = [(shape, axis) for shape in SHAPES for axis in (None, *range(len(shape)))]


def weight_of(shape):
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return np.where(np.abs(weight) < 0.5, np.float32(0), weight)


@each_case("block", [1, 10, 1 << 17])
@each_case("shape, axis", CASES)
def test_blocks_of_any_size_give_what_the_whole_gives(monkeypatch, shape, axis, block):
    monkeypatch.setattr(magnitudes, "_BLOCK", block)
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


def test_an_axis_that_is_not_there_is_refused():
    with pytest.raises(AxisError, match="axis 2 is outside a tensor of shape"):
        magnitudes_of(weight_of((2, 3)), PerAxis(2))


def parameters(weight, axis=None, clip=1.0):
    granularity = PerTensor() if axis is None else PerAxis(axis)
    amax = np.max(np.abs(weight), axis=granularity.reduced_axes(weight.shape), initial=0.0) * clip
    scale = scale_from_amax(amax, INT8_NARROW)
    return QuantParameters(scale, np.zeros(scale.shape, np.int64), INT8_NARROW, granularity)


def outlier(weight, decided):
    return find_outlier(weight, decided, magnitudes_of(weight, decided.granularity))


def noise(kind="standard_normal", shape=(16, 500)):
    return getattr(np.random.default_rng(0), kind)(size=shape).astype(np.float32)


@each_case("axis", [None, 0, 1])
@each_case("kind", ["standard_normal", "laplace", "uniform"])
def test_usual_weights_have_none(kind, axis):
    weight = noise(kind)
    assert outlier(weight, parameters(weight, axis)) is None


def test_a_value_of_a_channel():
    weight = noise()
    weight[3, 7], weight[5, 1] = 200.0, -90.0
    found = outlier(weight, parameters(weight, 0))
    assert (found.axis, found.channel, found.channels) == (0, 3, 2)
    assert 230 < found.ratio < 260
    assert "channel 3 (axis 0)" in found.describe()


def test_a_value_of_a_weight_with_one_scale():
    weight = noise()
    weight[0, 0] = 100.0
    found = outlier(weight, parameters(weight))
    assert isinstance(found, Outlier) and found.axis is None
    assert found.channels == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_a_channel_that_shares_the_scale_of_far_smaller_ones(axis):
    weight = noise(shape=(40, 40))
    weight[(slice(None),) * axis + (9,)] *= 30.0
    found = outlier(weight, parameters(weight))
    assert isinstance(found, LargeChannel)
    assert "weights.granularity=channel" in outlier_line({"w": found.describe()})
    only = outlier_line({"w": replace(found, is_asked=False).describe()})
    assert only.endswith("its layer takes one scale; ptq export --exclude LAYER keeps its layer in float")
    assert "weight_method" not in outlier_line({"w": Outlier(None, 0, 99.6, 1).describe()}, "mse")
    assert (found.axis, found.channel) == (axis, 9)
    # With a scale for each channel nothing is lost.
    assert outlier(weight, parameters(weight, axis)) is None


@each_case("shape", [(0, 4), (4, 0), (3, 1), (1, 1), (4,)])
def test_weights_with_few_values_or_none_are_taken(shape):
    for weight in (np.zeros(shape, np.float32), np.ones(shape, np.float32)):
        assert outlier(weight, parameters(weight, 0)) is None
        assert outlier(weight, parameters(weight)) is None
