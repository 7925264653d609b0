"""The expected error and the clipped share, against the values themselves."""

import math
from functools import cache

import numpy as np
import pytest

from ptq_cli.amax.choice import Choice, count_clipped, counts_between, expected_error, signed_bins
from ptq_cli.amax.decide import decide
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.tensor_statistics import BitHistogram, TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters, fake_quantize, parameters_from_range
from ptq_cli.core.formats import INT8, UINT8, IntegerFormat
from ptq_cli.recipe.sections import AmaxSettings
from tests.each_case import each_case

RANDOM = np.random.default_rng(7)
FORMATS = (INT8, UINT8, IntegerFormat(4, signed=True), IntegerFormat(2, signed=False))
VALUES = {
    "normal": RANDOM.standard_normal(200_000),
    "behind a ReLU": np.maximum(RANDOM.standard_normal(200_000), 0),
    "behind a ReLU6": np.clip(RANDOM.normal(3, 4, 200_000), 0, 6),
    "heavy tails": RANDOM.standard_t(3, 200_000),
    "all negative": -RANDOM.gamma(2, 1, 200_000),
    "tiny": RANDOM.standard_normal(200_000) * 1e-5,
    "huge": RANDOM.standard_normal(200_000) * 1e37,
}
each_array = each_case("name", VALUES)
each_method = each_case("method", METHODS)


def kept(array: np.ndarray) -> tuple[TensorStatistics, BitHistogram]:
    collector = HistogramCollector()
    assert collector.update(np.asarray(array, np.float32))
    statistics = collector.statistics()
    assert statistics.histogram is not None
    return statistics, statistics.histogram


@cache
def kept_of(name: str) -> tuple[np.ndarray, TensorStatistics, BitHistogram]:
    array = VALUES[name].astype(np.float32)
    return array, *kept(array)


@each_array
@each_method
def test_the_error_is_that_of_the_values(name, method):
    for format in FORMATS:
        for symmetric in (True, False):
            require_the_error_of_the_values(name, method, format, symmetric=symmetric)


def require_the_error_of_the_values(name, method, format, *, symmetric):
    array, statistics, histogram = kept_of(name)
    parameters = decide(statistics, AmaxSettings(method=method), format, symmetric=symmetric).parameters

    found = expected_error(statistics, histogram, parameters)

    exact = array.astype(np.float64)
    error = np.mean((fake_quantize(array, parameters) - exact) ** 2)
    assert found.mse == pytest.approx(error, rel=0.03)
    assert found.sqnr_db == pytest.approx(10 * np.log10(np.mean(exact**2) / error), abs=0.15)
    lowest = (format.qmin - int(parameters.zero_point)) * float(parameters.scale)
    highest = (format.qmax - int(parameters.zero_point)) * float(parameters.scale)
    beyond = np.maximum(exact - highest, 0) + np.maximum(lowest - exact, 0)
    assert found.clipping == pytest.approx(np.mean(beyond**2), rel=0.03, abs=1e-3 * error)


@each_array
@each_method
@each_case("symmetric", [True, False], ids=["symmetric", "zero point"])
def test_the_clipped_count_is_bounded_by_whole_bins(name, method, symmetric):
    array, statistics, histogram = kept_of(name)
    choice = decide(statistics, AmaxSettings(method=method), INT8, symmetric=symmetric).choice
    least, most = count_clipped(statistics, histogram, choice)
    beyond = int(np.count_nonzero((array < choice.low) | (array > choice.high)))
    at_end = int(np.count_nonzero((array == choice.low) | (array == choice.high)))
    assert least - at_end <= beyond <= most
    if method in ("max", "percentile"):
        assert least == most
    if method == "max":
        assert most == 0


@pytest.mark.parametrize("array", [np.zeros(8), np.zeros(0)], ids=["zeros", "no value"])
def test_zeros_have_no_error(array):
    statistics, histogram = kept(array)
    found = expected_error(statistics, histogram, parameters_from_range(0.0, 1.0, UINT8))
    assert (found.mse, found.clipping, found.sqnr_db) == (0.0, 0.0, math.inf)
    assert count_clipped(statistics, histogram, Choice(0.0, 0.0)) == (0, 0)


def test_a_single_value_is_known_exactly():
    statistics, histogram = kept(np.full(5, 0.3))
    half = QuantParameters(np.float32(0.5).reshape(()), np.int64(0).reshape(()), UINT8)
    assert expected_error(statistics, histogram, half).mse == pytest.approx(0.2**2)


@each_array
def test_bins_and_columns_hold_every_value(name):
    array, statistics, histogram = kept_of(name)
    bins = signed_bins(statistics, histogram)
    assert bins.low[0] == pytest.approx(float(array[array != 0].min()), rel=1)
    assert (bins.low <= bins.high).all() and (bins.high[:-1] <= bins.low[1:]).all()
    edges = np.linspace(min(statistics.low, 0.0), max(statistics.high, 0.0), 61)
    counts = counts_between(bins, edges)
    assert counts.sum() == pytest.approx(np.count_nonzero(array))
    exact, _ = np.histogram(array[array != 0].astype(np.float64), edges)
    assert np.abs(counts - exact).max() <= 0.02 * exact.sum()
