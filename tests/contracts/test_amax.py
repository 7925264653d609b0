"""What every amax method promises."""

import numpy as np
import pytest

from ptq_cli.amax.decide import METHODS, decide_amax, decide_parameters
from ptq_cli.collectors.histogram import HistogramCollector
from ptq_cli.core.arithmetic import fake_quantize
from ptq_cli.core.formats import INT8, UINT8
from ptq_cli.recipe.schema import AmaxSettings

RNG = np.random.default_rng(41)
NORMAL = RNG.normal(size=4000).astype(np.float32)
ARRAYS = {
    "normal": NORMAL,
    "relu": np.maximum(NORMAL, 0),
    "negative": -np.abs(NORMAL),
    "away from zero": np.abs(NORMAL) + 5,
    "one value": np.array([-3.5], np.float32),
    "constant": np.full(100, 0.125, np.float32),
    "heavy tail": (NORMAL**5).astype(np.float32),
    "huge": (NORMAL / np.abs(NORMAL).max() * 1e38).astype(np.float32),
    "small": NORMAL * np.float32(1e-6),
}

pytestmark = pytest.mark.parametrize("method", METHODS)
each_array = pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)


def statistics_of(*arrays):
    collector = HistogramCollector()
    for array in arrays:
        assert collector.update(array)
    return collector.statistics()


@each_array
def test_amax_is_finite_positive_and_at_most_the_largest_magnitude(method, array):
    amax = decide_amax(statistics_of(array), AmaxSettings(method))

    assert 0 < amax <= np.abs(array).max()


@each_array
def test_sign_does_not_matter(method, array):
    settings = AmaxSettings(method)

    assert decide_amax(statistics_of(array), settings) == decide_amax(statistics_of(-array), settings)


@pytest.mark.parametrize("arrays", [[], [np.zeros(9, np.float32)]], ids=["no values", "only zeros"])
def test_nothing_to_see_is_zero_and_gets_scale_one(method, arrays):
    statistics, settings = statistics_of(*arrays), AmaxSettings(method)

    assert decide_amax(statistics, settings) == 0
    for symmetric in (True, False):
        parameters = decide_parameters(statistics, settings, UINT8, symmetric=symmetric)
        assert parameters.scale == 1
        assert fake_quantize(np.zeros(3, np.float32), parameters).tolist() == [0, 0, 0]


@each_array
@pytest.mark.parametrize("format", [INT8, UINT8], ids=lambda format: format.name)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_parameters_hold_zero_and_the_range(method, array, format, symmetric):
    statistics, settings = statistics_of(array), AmaxSettings(method)

    parameters = decide_parameters(statistics, settings, format, symmetric=symmetric)

    assert parameters.scale.shape == parameters.zero_point.shape == ()
    assert np.isfinite(parameters.scale) and parameters.scale > 0
    assert format.qmin <= parameters.zero_point <= format.qmax
    assert fake_quantize(np.zeros(1, np.float32), parameters).tolist() == [0.0]
    amax = decide_amax(statistics, settings)
    inside = array[(np.abs(array) <= amax)]
    error = np.abs(fake_quantize(inside, parameters).astype(np.float64) - inside)
    # Half a step; a whole one at the ends, where the zero point was rounded.
    assert (error <= float(parameters.scale) * 1.001).all()


def test_order_of_the_batches_does_not_matter(method):
    parts, settings = np.split(NORMAL, 8), AmaxSettings(method)

    forward, backward = statistics_of(*parts), statistics_of(*parts[::-1])

    assert decide_amax(forward, settings) == decide_amax(backward, settings) > 0
