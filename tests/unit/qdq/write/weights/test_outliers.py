"""Which weights are warned of, and which are as weights are."""

import numpy as np
import pytest

from ptq_cli.core.arithmetic import QuantParameters, scale_from_amax
from ptq_cli.core.formats import INT8_NARROW, PerAxis, PerTensor
from ptq_cli.qdq.write.outliers import LargeChannel, Outlier, find_outlier, magnitudes_of
from tests.each_case import each_case


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


def test_pruned_weights_have_none():
    weight = noise() * (noise("uniform") > 0.95)
    assert outlier(weight, parameters(weight, 0)) is None


def test_a_value_of_a_channel():
    weight = noise()
    weight[3, 7], weight[5, 1] = 200.0, -90.0
    found = outlier(weight, parameters(weight, 0))
    assert (found.axis, found.channel, found.channels) == (0, 3, 2)
    assert 230 < found.ratio < 260
    assert "channel 3 (axis 0)" in found.describe()


def test_a_range_that_is_clipped_leaves_the_others_their_steps():
    weight = noise()
    weight[3, 7] = 200.0
    assert outlier(weight, parameters(weight, 0, clip=0.02)) is None


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
    assert (found.axis, found.channel) == (axis, 9)
    # With a scale for each channel nothing is lost.
    assert outlier(weight, parameters(weight, axis)) is None


@each_case("shape", [(0, 4), (4, 0), (3, 1), (1, 1), (4,)])
def test_weights_with_few_values_or_none_are_taken(shape):
    for weight in (np.zeros(shape, np.float32), np.ones(shape, np.float32)):
        assert outlier(weight, parameters(weight, 0)) is None
        assert outlier(weight, parameters(weight)) is None
