import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.amax.decide import decide_range
from ptq_cli.amax.linear_histogram import LinearHistogram, histogram_of_values
from ptq_cli.amax.mse import mse_amax, mse_range, symmetric_errors
from ptq_cli.core.arithmetic import fake_quantize, parameters_from_range
from ptq_cli.core.formats import INT8, UINT8, IntegerFormat
from ptq_cli.recipe.sections import AmaxSettings
from tests.collected import statistics_of
from tests.each_case import each_case

RNG = np.random.default_rng(46)
NORMAL = RNG.normal(size=60_000).astype(np.float32)
ARRAYS = {
    "normal": NORMAL,
    "relu": np.maximum(NORMAL, 0),
    "laplace": RNG.laplace(size=60_000).astype(np.float32),
    "two tails": np.where(NORMAL > 0, NORMAL, NORMAL**3).astype(np.float32),
    "outliers": np.append(NORMAL, [40.0, -8.0]).astype(np.float32),
    "gelu-like": np.where(NORMAL > 0, NORMAL, NORMAL / 20).astype(np.float32),
}
each_array = each_case("values", ARRAYS.values(), ids=ARRAYS)
COUNTS = st.lists(st.integers(0, 1000), min_size=24, max_size=24)


def centered_error(histogram, scale, steps_below, steps_above):
    """The definition: each bin's values at its center, rounded to the nearest step, saturated."""
    centers = (np.arange(histogram.bins) + 0.5) * histogram.width
    error = 0.0
    for counts, steps in ((histogram.negative, steps_below), (histogram.positive, steps_above)):
        error += (counts * (np.minimum(np.rint(centers / scale), steps) * scale - centers) ** 2).sum()
    return error


def two_sided(negative, positive):
    size = len(negative)
    low = -float(np.max(np.flatnonzero(negative), initial=-1) + 1)
    high = float(np.max(np.flatnonzero(positive), initial=-1) + 1)
    return LinearHistogram(
        negative=np.array(negative), positive=np.array(positive), top=float(size), low=low, high=high, zeros=0
    )


@given(negative=COUNTS, positive=COUNTS, amax=st.floats(1.0, 24.0))
@pytest.mark.parametrize(
    "format",
    [
        IntegerFormat(2, signed=True),
        IntegerFormat(2, signed=True, narrow_range=True),
        IntegerFormat(3, signed=True, narrow_range=True),
        IntegerFormat(2, signed=False),
    ],
    ids=str,
)
def test_error_is_the_definition_s(format, negative, positive, amax):
    histogram = two_sided(negative, positive)
    scale = amax / format.qmax
    (found,) = symmetric_errors(histogram, np.array([amax]), format)
    expected = centered_error(histogram, scale, -format.qmin, format.qmax)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(negative=COUNTS, positive=COUNTS, start=st.integers(1, 24), stride=st.integers(1, 4))
def test_amax_is_the_best_of_brute_force(negative, positive, start, stride):
    histogram, format = two_sided(negative, positive), IntegerFormat(3, signed=True, narrow_range=True)
    if np.count_nonzero(histogram.magnitudes) < 2:
        return
    candidates = [*(np.arange(start, histogram.bins, stride) + 0.5), histogram.full_amax]
    errors = [centered_error(histogram, amax / 3, 3, 3) for amax in candidates]
    found = mse_amax(histogram, format, start_bin=start, stride=stride)
    assert found.candidates == len(candidates)
    assert errors[candidates.index(found.amax)] == pytest.approx(min(errors), rel=1e-9, abs=1e-6)


@given(negative=COUNTS, positive=COUNTS)
def test_range_is_the_best_of_every_scale_and_zero_point(negative, positive):
    histogram, format = two_sided(negative, positive), IntegerFormat(2, signed=False)
    if np.count_nonzero(negative) + np.count_nonzero(positive) < 2:
        return
    width = histogram.high - histogram.low
    scales = np.append((np.arange(4, 24) + 0.5) * width / 24, width) / 3
    best = min(centered_error(histogram, scale, 3 - above, above) for scale in scales for above in range(4))
    found = mse_range(histogram, format, start_bin=4)
    scale = (found.high - found.low) / 3
    above = round(found.high / scale)
    assert centered_error(histogram, scale, 3 - above, above) == pytest.approx(best, rel=1e-9, abs=1e-6)


def real_error(values, choice, format, symmetric):
    """The mean squared error of the values themselves, by the arithmetic of the runtime."""
    if symmetric:
        scale = choice.amax / format.qmax
        q = np.clip(np.rint(values / scale), format.qmin, format.qmax) * scale
    else:
        q = fake_quantize(values, parameters_from_range(choice.low, choice.high, format))
    return np.square(q.astype(np.float64) - values).mean()


@each_array
@each_case("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@each_case("bits", [2, 3, 4, 6, 8, 9, 10, 12, 16])
def test_real_error_is_never_above_that_of_other_methods(values, bits, symmetric):
    format, statistics = IntegerFormat(bits, signed=symmetric), statistics_of(values)

    def error(method, percentile=99.99):
        choice = decide_range(
            statistics, AmaxSettings(method=method, percentile=percentile), format, symmetric=symmetric
        )
        return real_error(values, choice, format, symmetric)

    ours = error("mse")
    assert ours <= error("max") * 1.01
    assert ours <= error("entropy") * 1.01
    for percentile in (90.0, 99.0, 99.9, 99.99, 99.999, 100.0):
        assert ours <= error("percentile", percentile) * 1.01


def test_expected_error_of_many_levels_is_a_twelfth_of_a_step_squared():
    histogram = histogram_of_values(NORMAL)
    format = IntegerFormat(14, signed=True, narrow_range=True)
    (found,) = symmetric_errors(histogram, np.array([histogram.full_amax]), format)
    step = histogram.full_amax / format.qmax
    assert found / NORMAL.size == pytest.approx(step**2 / 12, rel=0.01)
    scale = np.float64(step)
    real = np.square(np.rint(NORMAL / scale) * scale - NORMAL.astype(np.float64)).mean()
    assert found / NORMAL.size == pytest.approx(real, rel=0.05)


@pytest.mark.parametrize("format", [UINT8, INT8, IntegerFormat(16, signed=False)], ids=lambda f: f.name)
def test_side_without_values_gets_no_step(format):
    above, below = (mse_range(histogram_of_values(sign * np.maximum(NORMAL, 0)), format) for sign in (1, -1))
    assert above.low == 0 and below.high == 0
    assert int(parameters_from_range(above.low, above.high, format).zero_point) == format.qmin
    assert int(parameters_from_range(below.low, below.high, format).zero_point) == format.qmax
