from dataclasses import replace

import numpy as np
import pytest

from ptq_cli.amax.decide import check_amax_settings, decide, decide_channels, decide_range, resolve_method
from ptq_cli.amax.expected_error import expected_error
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.collectors.bit_histogram import from_values
from ptq_cli.collectors.channel_collector import ChannelCollector
from ptq_cli.collectors.channel_kernels import CHANNEL_BITS
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.core.errors import MissingStatisticError, UnknownNameError
from ptq_cli.core.formats import INT8, UINT8
from ptq_cli.recipe.sections import AmaxSettings
from tests.collected import statistics_of
from tests.each_case import each_case

OUTLIER = np.concatenate([np.linspace(-1, 2, 9999), [1000.0]]).astype(np.float32)
MAX = AmaxSettings(method="max")
MOST = AmaxSettings(method="percentile", percentile=99.9)


def decide_parameters(statistics, settings, format, symmetric):
    return decide(statistics, settings, format, symmetric=symmetric).parameters


def decide_amax(statistics, settings):
    return decide_range(statistics, settings, INT8, symmetric=True).amax


@pytest.mark.parametrize("decide", [check_amax_settings, lambda s: decide_amax(statistics_of([1.0]), s)])
def test_unknown_method_names_the_nearest_and_all(decide):
    with pytest.raises(UnknownNameError) as caught:
        decide(AmaxSettings(method="percentil"))
    assert caught.value.message == "unknown amax method 'percentil' (did you mean 'percentile'?)"
    assert caught.value.hint == "known: auto, max, percentile, entropy, mse"


@each_case(
    "method, has_histogram, resolved",
    [
        ("auto", True, "percentile"),
        ("auto", False, "max"),
        ("max", True, "max"),
        ("percentile", False, "percentile"),
        ("mse", True, "mse"),
    ],
)
def test_auto_follows_what_was_kept(method, has_histogram, resolved):
    assert resolve_method(AmaxSettings(method=method), has_histogram=has_histogram) == resolved


@each_case("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@each_case("method", ["percentile", "entropy", "mse"])
def test_methods_without_histograms_are_missing(method, symmetric):
    with pytest.raises(MissingStatisticError, match=f"the {method} method needs histograms"):
        decide_parameters(
            statistics_of(OUTLIER, MaxCollector()), AmaxSettings(method=method), UINT8, symmetric=symmetric
        )


def test_unknown_method_of_weights_is_refused_and_auto_is_none_of_them():
    with pytest.raises(UnknownNameError) as caught:
        check_amax_settings(AmaxSettings(weight_method="auto"))
    assert caught.value.message == "unknown amax method of weights 'auto'"
    assert caught.value.hint == "known: max, percentile, entropy, mse"


@each_case("method", METHODS)
@each_case("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_channels_are_decided_one_by_one(method, symmetric):
    settings = AmaxSettings(method=method)
    values = np.outer(np.random.default_rng(3).normal(size=20_000), [1, 0.25, 0]).astype(np.float32)
    collector = ChannelCollector(1)
    collector.update(values)
    found = decide_channels(collector.statistics(), settings, UINT8, symmetric=symmetric)
    assert [item.method for item in found] == [method] * 3
    for item, column in zip(found, values.T, strict=True):
        whole = statistics_of(column)
        alone = replace(whole, histogram=from_values(column, CHANNEL_BITS))
        assert item == decide(alone, settings, UINT8, symmetric=symmetric)
        fine = decide(whole, settings, UINT8, symmetric=symmetric)
        # Bins of 2^-9 of the largest octave cost a percentile as much, and next to no error.
        if method in ("max", "percentile"):
            nearby = pytest.approx((fine.choice.low, fine.choice.high), abs=float(whole.high) / 2**8)
            assert (item.choice.low, item.choice.high) == nearby
        if method == "mse":
            errors = (
                expected_error(whole, whole.histogram, found_by.parameters) for found_by in (item, fine)
            )
            mse, least = (error.mse for error in errors)
            assert mse <= 1.01 * least
    assert found[2].choice.amax == 0 and found[2].parameters.scale == 1


def test_outlier_on_one_side_costs_the_other_side_nothing():
    parameters = decide_parameters(statistics_of(OUTLIER), MOST, UINT8, symmetric=False)
    # [-1, 2] and not [-2, 2].
    assert float(parameters.scale) == pytest.approx(3 / 255, rel=0.01)
    assert int(parameters.zero_point) == 85


def test_range_not_above_two_to_the_minus_110_counts_as_zero():
    parameters = decide_parameters(statistics_of([2.0**-110, -(2.0**-112)]), MAX, INT8, symmetric=True)
    assert float(parameters.scale) == 1.0
