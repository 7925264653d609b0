"""Replay NVIDIA's recorded calibrations: max exactly, percentile within one of their bins.

Where ptq differs on purpose:

- Their percentile is the lower edge of the bin that holds the percentile, ours the upper one, and at most the
  largest magnitude. So ours never cuts off the value itself, and 100 is exactly max.
- Where the percentile is a whole number of values, the rounding of their float sum may take the next value.
- Where zeros alone are the percentile, theirs is 0; ours is the smallest bin above it.
- Their bins are ``first batch's max / num_bins`` wide; ours do not depend on the first batch.
- They accept percentile 0 and return 0, which quantizes everything to 0; a recipe with it is refused.
- Without data they return None; ours is 0, and ``collect`` refuses an empty set.
"""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from ptq_cli.amax.decide import check_amax_settings
from ptq_cli.amax.max import max_amax
from ptq_cli.amax.percentile import percentile_amax
from ptq_cli.collectors.histogram import HistogramCollector
from ptq_cli.collectors.max import MaxCollector
from ptq_cli.core.errors import RecipeValueError, UnknownNameError
from ptq_cli.core.granularity import PerAxis, PerTensor
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.schema import AmaxSettings, Recipe

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["cases"]
ARRAYS = dict(np.load(FOLDER / "calibrators.npz", allow_pickle=False))
DEFAULT_PERCENTILE = 99.99  # Of calibrate_weights.


def select(function, wanted=lambda case: True):
    return [pytest.param(c, id=c["id"]) for c in CASES if c["function"] == function and wanted(c)]


def batches(case):
    return [ARRAYS[key] for key in case.get("inputs", {}).get("batches", [])]


def has_amax(case):
    return "outputs" in case


def method_is(method):
    return lambda case: has_amax(case) and case["params"].get("method") == method


def granularity(case):
    axis = case["params"].get("axis")
    axis = axis["tuple"][0] if isinstance(axis, dict) else axis
    return PerTensor() if axis is None else PerAxis(axis)


def statistics_of(arrays, collector):
    for array in arrays:
        assert collector.update(array)
    return collector.statistics()


def channels(case):
    """The weight's channels, in the order of the recorded amax; the whole weight if there is only one."""
    weight, recorded = ARRAYS[case["inputs"]["weight"]], ARRAYS[case["outputs"]["amax"]]
    if not case["params"]["perchannel"]:
        return [weight]
    axis = recorded.shape.index(max(recorded.shape))
    return list(np.moveaxis(weight, axis, 0))


@pytest.mark.parametrize("case", select("MaxCalibrator", has_amax))
def test_max_is_the_recorded_amax(case):
    statistics = statistics_of(batches(case), MaxCollector(granularity(case)))

    recorded = ARRAYS[case["outputs"]["amax"]]
    np.testing.assert_array_equal(
        np.maximum(-statistics.minimum, statistics.maximum).ravel(), np.ravel(recorded)
    )
    assert max_amax(statistics) == recorded.max()


@pytest.mark.parametrize("case", select("MaxCalibrator", lambda case: "raises" in case))
def test_max_refuses_a_changed_number_of_channels(case):
    with pytest.raises(ValueError, match=r"axis \d had \d channels and now has \d"):
        statistics_of(batches(case), MaxCollector(granularity(case)))


@pytest.mark.parametrize("case", select("calibrate_weights", method_is("max")))
def test_max_of_each_channel_is_the_recorded_amax(case):
    found = [max_amax(statistics_of([part], MaxCollector())) for part in channels(case)]

    assert found == ARRAYS[case["outputs"]["amax"]].ravel().tolist()


def candidates(statistics, percentile):
    """Ours, and where the percentile is a whole number of values, also ours for one value more."""
    rank = Fraction(str(percentile)) * statistics.count / 100
    exact = [percentile_amax(statistics, percentile)]
    if rank.denominator > 1:
        return exact
    return [*exact, percentile_amax(statistics, min(100 * (int(rank) + 0.5) / statistics.count, 100))]


def assert_follows(statistics, percentile, recorded, their_width):
    largest = max_amax(statistics)
    # Theirs lies at most one bin below the exact percentile, ours at most one above it.
    assert any(
        recorded <= ours <= recorded + their_width + largest / 2048
        for ours in candidates(statistics, percentile)
    )
    assert percentile_amax(statistics, percentile) <= largest


@pytest.mark.parametrize(
    "case",
    select("HistogramCalibrator", lambda case: has_amax(case) and case["params"]["percentile"] > 0),
)
def test_percentile_follows_the_recorded_amax(case):
    statistics = statistics_of(batches(case), HistogramCollector())
    bins, _, last_edge = case["values"]["hist_trace"][0]
    percentile, recorded = case["params"]["percentile"], float(ARRAYS[case["outputs"]["amax"]])

    if recorded == 0:
        assert statistics.zeros >= percentile / 100 * statistics.count
        assert percentile_amax(statistics, percentile) == statistics.histogram.upper_edges().min()
    else:
        assert_follows(statistics, percentile, recorded, last_edge / bins)
    if percentile == 100:
        assert percentile_amax(statistics, percentile) == max_amax(statistics) > recorded


@pytest.mark.parametrize("case", select("calibrate_weights", method_is("percentile")))
def test_percentile_of_each_channel_follows_the_recorded_amax(case):
    percentile = case["params"].get("percentile", DEFAULT_PERCENTILE)
    recorded = ARRAYS[case["outputs"]["amax"]].ravel()

    for part, theirs in zip(channels(case), recorded, strict=True):
        statistics = statistics_of([part], HistogramCollector())
        width = max_amax(statistics) / case["params"].get("num_bins", 2048)
        assert_follows(statistics, percentile, float(theirs), width)


@pytest.mark.parametrize("case", select("HistogramCalibrator", lambda case: "bad_percentile" in case["tags"]))
def test_percentiles_that_the_reference_refuses_are_refused(case):
    with pytest.raises(
        RecipeValueError, match=r"'amax\.percentile' is .*, it must be above 0 and at most 100"
    ):
        check_recipe(Recipe(amax=AmaxSettings(percentile=case["params"]["percentile"])))


@pytest.mark.parametrize(
    "case",
    select("HistogramCalibrator", lambda case: has_amax(case) and case["params"].get("percentile") == 0),
)
def test_percentile_zero_is_refused(case):
    assert float(ARRAYS[case["outputs"]["amax"]]) == 0
    with pytest.raises(RecipeValueError, match="it must be above 0"):
        check_recipe(Recipe(amax=AmaxSettings(percentile=0.0)))


@pytest.mark.parametrize("case", select("HistogramCalibrator", lambda case: "bad_method" in case["tags"]))
def test_methods_that_the_reference_refuses_are_refused(case):
    with pytest.raises(UnknownNameError, match="unknown amax method"):
        check_amax_settings(AmaxSettings(method=case["params"]["method"]))


@pytest.mark.parametrize(
    "case", [case for case in CASES if "no_data" in case["tags"] and "raises" not in case]
)
def test_no_data_is_an_empty_range(case):
    assert next(iter(case["values"].values())) is None
    assert percentile_amax(HistogramCollector().statistics(), 99.9) == 0
    assert max_amax(MaxCollector().statistics()) == 0


def test_selection_holds_every_kind_of_case():
    tags = {tag for case in CASES for tag in case["tags"]}
    assert {
        "growing",
        "one_batch",
        "edge_values",
        "unsigned",
        "negative",
        "zeros",
        "no_data",
        "error",
    } <= tags
    assert {case["function"] for case in CASES} == {
        "MaxCalibrator",
        "HistogramCalibrator",
        "calibrate_weights",
    }
