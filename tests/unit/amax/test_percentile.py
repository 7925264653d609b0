import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.amax.percentile import percentile_amax
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.collectors.tensor_statistics import BitHistogram, TensorStatistics
from ptq_cli.core.errors import MissingStatisticError
from tests.collected import statistics_of
from tests.each_case import each_case

RNG = np.random.default_rng(43)
NORMAL = RNG.normal(size=20_000).astype(np.float32)
ARRAYS = {
    "normal": NORMAL,
    "relu": np.maximum(NORMAL, 0),
    "heavy tail": (NORMAL**7).astype(np.float32),
    "uniform": RNG.uniform(-1, 1, size=5000).astype(np.float32),
    "integers": RNG.integers(-100, 100, size=5000).astype(np.float32),
    "few": np.array([1, 2, 3, 4], np.float32),
}


@each_case("percentile", [10, 50, 75, 90, 99, 99.9, 99.99, 99.999, 100])
@each_case("values", ARRAYS.values(), ids=ARRAYS)
def test_follows_the_sorted_values_within_a_bin(values, percentile):
    magnitudes = np.sort(np.abs(values))
    # numpy.percentile with "inverted_cdf", but for its float64 rank, which is one too high for 99.9 %.
    exact = magnitudes[math.ceil(Fraction(str(percentile)) * magnitudes.size / 100) - 1]
    found = percentile_amax(statistics_of(values), percentile)
    if exact == 0:  # The zeros alone are the percentile: some range is left all the same.
        exact = magnitudes[magnitudes > 0].min()
    assert exact <= found <= exact + magnitudes.max() / 2048


def test_zeros_count():
    values = np.concatenate([np.zeros(90), np.arange(1, 11)])
    assert percentile_amax(statistics_of(values), 95.0) == pytest.approx(5, rel=1 / 256)
    assert percentile_amax(statistics_of(values[90:]), 95.0) == 10


@each_case(
    "percentile, count, rank",
    [(99.9, 10**9, 999_000_000), (99.999, 10**8, 99_999_000), (33.3, 1000, 333), (33.3, 1001, 334)],
)
def test_rank_is_exact_however_many_values_there_are(percentile, count, rank):
    # All but the last value of the rank in a lower bin: one rank more or less is another bin.
    keys = np.array([127 << 11, (127 << 11) + 1, (127 << 11) + 2], np.uint32)
    histogram = BitHistogram(keys, np.array([rank - 1, 1, count - rank]))
    one = np.float32(1).reshape(())
    statistics = TensorStatistics(count=count, zeros=0, minimum=one, maximum=one * 2, histogram=histogram)
    assert percentile_amax(statistics, percentile) == histogram.upper_edges()[1]


def test_without_histogram_the_statistic_is_missing():
    collector = MaxCollector()
    collector.update(NORMAL)
    with pytest.raises(MissingStatisticError) as caught:
        percentile_amax(collector.statistics(), 99.9)
    assert caught.value.code == "PTQ-CALIB-004"
    assert caught.value.message == (
        "the percentile method needs histograms, and this calibration kept only ranges"
    )
    assert caught.value.hint == "calibrate with --method histogram, or export with --amax max"


VALUES = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)
PERCENTILES = st.floats(1e-6, 100)


@given(values=VALUES, percentile=PERCENTILES)
def test_range_holds_the_percentile_of_the_values(values, percentile):
    statistics = statistics_of(values)
    amax = percentile_amax(statistics, percentile)
    assert amax <= max(abs(statistics.low), abs(statistics.high))
    inside = np.count_nonzero(np.abs(np.asarray(values, np.float32)) <= amax)
    assert inside >= np.floor(percentile / 100 * len(values))
