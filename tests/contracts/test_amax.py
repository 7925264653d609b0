"""What every amax method promises."""

from functools import cache

import numpy as np

from ptq_cli.amax.decide import decide, decide_range
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.amax.weight_ranges import choose_weight_ranges
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.core.arithmetic import fake_quantize
from ptq_cli.core.formats import INT8, INT8_NARROW, UINT8, IntegerFormat, PerAxis, PerTensor
from ptq_cli.recipe.sections import AmaxSettings
from tests.each_case import each_case

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

each_method = each_case("method", METHODS)
each_array = each_case("name", ARRAYS)
symmetric_or_not = each_case("symmetric", [True, False], ids=["symmetric", "asymmetric"])


def statistics_of(*arrays):
    collector = HistogramCollector()
    for array in arrays:
        assert collector.update(array)
    return collector.statistics()


@cache
def kept(name):
    return statistics_of(ARRAYS[name])


@each_method
@each_array
def test_amax_is_finite_positive_and_at_most_the_largest_magnitude(method, name):
    for format in FORMATS:
        choice = decide_range(kept(name), AmaxSettings(method=method), format, symmetric=True)
        assert 0 < choice.amax <= np.abs(ARRAYS[name]).max(), format
        assert choice.low == -choice.high, format


@each_method
@each_array
def test_range_holds_zero_and_is_no_wider_than_the_values(method, name):
    array = ARRAYS[name]
    low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
    for format in FORMATS:
        choice = decide_range(kept(name), AmaxSettings(method=method), format, symmetric=False)
        assert choice.low <= 0 <= choice.high, format
        assert 0 < choice.high - choice.low <= (high - low) * (1 + 1e-9), format
        if low == 0:
            assert choice.low == 0, format
        if high == 0:
            assert choice.high == 0, format


@each_method
@each_case("format", [INT8_NARROW, IntegerFormat(4, signed=True, narrow_range=True)], ids=str)
def test_sign_does_not_matter_to_a_symmetric_range(method, format):
    settings = AmaxSettings(method=method)
    for name, array in ARRAYS.items():
        one, other = (
            decide_range(statistics, settings, format, symmetric=True)
            for statistics in (kept(name), statistics_of(-array))
        )
        assert one == other, name


@each_method
@symmetric_or_not
@each_case("arrays", [[], [np.zeros(9, np.float32)]], ids=["no values", "only zeros"])
def test_nothing_to_see_is_zero_and_gets_scale_one(method, arrays, symmetric):
    found = decide(statistics_of(*arrays), AmaxSettings(method=method), UINT8, symmetric=symmetric)
    assert found.choice.amax == 0
    assert found.parameters.scale == 1
    assert fake_quantize(np.zeros(3, np.float32), found.parameters).tolist() == [0, 0, 0]


@each_method
@each_array
@symmetric_or_not
def test_parameters_hold_zero_and_the_range(method, name, symmetric):
    for format in (INT8, UINT8):
        found = decide(kept(name), AmaxSettings(method=method), format, symmetric=symmetric)
        require_zero_and_the_range(ARRAYS[name], format, found)


def require_zero_and_the_range(array, format, found):
    parameters, choice = found.parameters, found.choice
    assert parameters.scale.shape == parameters.zero_point.shape == ()
    assert np.isfinite(parameters.scale) and parameters.scale > 0
    assert format.qmin <= parameters.zero_point <= format.qmax
    assert fake_quantize(np.zeros(1, np.float32), parameters).tolist() == [0.0]
    inside = array[(array >= choice.low) & (array <= choice.high)]
    error = np.abs(fake_quantize(inside, parameters).astype(np.float64) - inside)
    # Half a step; a whole one at the ends, where the zero point was rounded.
    assert (error <= float(parameters.scale) * 1.001).all()


@each_method
@symmetric_or_not
def test_order_and_size_of_the_batches_do_not_matter(method, symmetric):
    parts, settings = np.split(NORMAL, 8), AmaxSettings(method=method)
    ranges = {
        decide_range(statistics_of(*batches), settings, UINT8, symmetric=symmetric)
        for batches in (parts, parts[::-1], [NORMAL])
    }
    assert len(ranges) == 1


@each_method
@symmetric_or_not
def test_power_of_two_scales_the_range_exactly(method, symmetric):
    values, settings = NORMAL[NORMAL > -1], AmaxSettings(method=method)
    statistics = {power: statistics_of(np.ldexp(values, power)) for power in (0, -40, -3, 1, 20)}
    for format in FORMATS:
        one, *others = (
            decide_range(item, settings, format, symmetric=symmetric) for item in statistics.values()
        )
        for power, scaled in zip(list(statistics)[1:], others, strict=True):
            expected = (np.ldexp(one.low, power), np.ldexp(one.high, power))
            assert (scaled.low, scaled.high) == expected, (format, power)
            assert scaled.candidates == one.candidates, (format, power)


@each_method
@each_array
def test_weights_are_decided_channel_by_channel(method, name):
    array, settings = ARRAYS[name], AmaxSettings(weight_method=method)
    channels = (array, np.zeros_like(array), array / 2)
    alone = [float(choose_weight_ranges(x, PerTensor(), settings, INT8_NARROW).amax) for x in channels]
    for axis in (0, 1):
        weight = np.stack(channels, axis=axis)
        ranges = choose_weight_ranges(weight, PerAxis(axis), settings, INT8_NARROW)
        assert ranges.amax.tolist() == alone, axis
        assert ranges.amax[1] == 0, axis
    whole = choose_weight_ranges(np.stack(channels), PerTensor(), settings, INT8_NARROW)
    assert whole.amax.shape == () and 0 < whole.amax <= np.abs(array).max()
