"""What every amax method promises."""

import numpy as np
import pytest

from ptq_cli.amax.decide import decide, decide_range
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.amax.weight_ranges import choose_weight_ranges
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.core.arithmetic import fake_quantize
from ptq_cli.core.formats import INT8, INT8_NARROW, UINT8, IntegerFormat
from ptq_cli.core.granularity import PerAxis, PerTensor
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
    "two values": np.array([-1.0, 1.0] * 50, np.float32),
    "heavy tail": (NORMAL**5).astype(np.float32),
    "huge": (NORMAL / np.abs(NORMAL).max() * 1e38).astype(np.float32),
    "small": NORMAL * np.float32(1e-6),
    "denormal": np.ldexp(NORMAL, -130).astype(np.float32),
}
FORMATS = [IntegerFormat(bits, signed=signed) for bits in (2, 4, 8, 11, 16) for signed in (True, False)]

pytestmark = pytest.mark.parametrize("method", METHODS)
each_array = pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
each_format = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
symmetric_or_not = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])


def statistics_of(*arrays):
    collector = HistogramCollector()
    for array in arrays:
        assert collector.update(array)
    return collector.statistics()


@each_array
@each_format
def test_amax_is_finite_positive_and_at_most_the_largest_magnitude(method, array, format):
    choice = decide_range(statistics_of(array), AmaxSettings(method=method), format, symmetric=True)

    assert 0 < choice.amax <= np.abs(array).max()
    assert choice.low == -choice.high


@each_array
@each_format
def test_range_holds_zero_and_is_no_wider_than_the_values(method, array, format):
    choice = decide_range(statistics_of(array), AmaxSettings(method=method), format, symmetric=False)

    low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
    assert choice.low <= 0 <= choice.high
    assert 0 < choice.high - choice.low <= (high - low) * (1 + 1e-9)
    if low == 0:
        assert choice.low == 0
    if high == 0:
        assert choice.high == 0


@each_array
@pytest.mark.parametrize("format", [INT8_NARROW, IntegerFormat(4, signed=True, narrow_range=True)], ids=str)
def test_sign_does_not_matter_to_a_symmetric_range(method, array, format):
    settings = AmaxSettings(method=method)
    one, other = (
        decide_range(statistics_of(values), settings, format, symmetric=True) for values in (array, -array)
    )
    assert one == other


@symmetric_or_not
@pytest.mark.parametrize("arrays", [[], [np.zeros(9, np.float32)]], ids=["no values", "only zeros"])
def test_nothing_to_see_is_zero_and_gets_scale_one(method, arrays, symmetric):
    found = decide(statistics_of(*arrays), AmaxSettings(method=method), UINT8, symmetric=symmetric)

    assert found.choice.amax == 0
    assert found.parameters.scale == 1
    assert fake_quantize(np.zeros(3, np.float32), found.parameters).tolist() == [0, 0, 0]


@each_array
@symmetric_or_not
@pytest.mark.parametrize("format", [INT8, UINT8], ids=lambda format: format.name)
def test_parameters_hold_zero_and_the_range(method, array, format, symmetric):
    found = decide(statistics_of(array), AmaxSettings(method=method), format, symmetric=symmetric)

    parameters, choice = found.parameters, found.choice
    assert parameters.scale.shape == parameters.zero_point.shape == ()
    assert np.isfinite(parameters.scale) and parameters.scale > 0
    assert format.qmin <= parameters.zero_point <= format.qmax
    assert fake_quantize(np.zeros(1, np.float32), parameters).tolist() == [0.0]
    inside = array[(array >= choice.low) & (array <= choice.high)]
    error = np.abs(fake_quantize(inside, parameters).astype(np.float64) - inside)
    # Half a step; a whole one at the ends, where the zero point was rounded.
    assert (error <= float(parameters.scale) * 1.001).all()


@symmetric_or_not
def test_order_and_size_of_the_batches_do_not_matter(method, symmetric):
    parts, settings = np.split(NORMAL, 8), AmaxSettings(method=method)

    ranges = {
        decide_range(statistics_of(*batches), settings, UINT8, symmetric=symmetric)
        for batches in (parts, parts[::-1], [NORMAL])
    }

    assert len(ranges) == 1


@symmetric_or_not
@pytest.mark.parametrize("power", [-40, -3, 1, 20])
@each_format
def test_power_of_two_scales_the_range_exactly(method, format, power, symmetric):
    values, settings = NORMAL[NORMAL > -1], AmaxSettings(method=method)

    one = decide_range(statistics_of(values), settings, format, symmetric=symmetric)
    scaled = decide_range(statistics_of(np.ldexp(values, power)), settings, format, symmetric=symmetric)

    assert (scaled.low, scaled.high) == (np.ldexp(one.low, power), np.ldexp(one.high, power))
    assert scaled.candidates == one.candidates


@each_array
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weights_are_decided_channel_by_channel(method, array, axis):
    weight = np.stack([array, np.zeros_like(array), array / 2], axis=axis or 0)
    settings = AmaxSettings(weight_method=method)

    granularity = PerTensor() if axis is None else PerAxis(axis)
    ranges = choose_weight_ranges(weight, granularity, settings, INT8_NARROW)

    if axis is None:
        assert ranges.amax.shape == () and 0 < ranges.amax <= np.abs(array).max()
        return
    alone = [
        float(choose_weight_ranges(part, PerTensor(), settings, INT8_NARROW).amax)
        for part in np.moveaxis(weight, axis, 0)
    ]
    assert ranges.amax.tolist() == alone
    assert ranges.amax[1] == 0
