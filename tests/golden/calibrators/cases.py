"""Replay one recorded case of NVIDIA's calibrators against ptq's amax functions.

``ON_PURPOSE`` lists every difference that is meant; docs/amax.md says more about each.
"""

import math
from fractions import Fraction

import numpy as np
import torch

from ptq_cli.amax.choice import Choice
from ptq_cli.amax.decide import check_amax_settings
from ptq_cli.amax.entropy import entropy_amax
from ptq_cli.amax.linear_histogram import BINS, LinearHistogram, histogram_of_values, linear_view
from ptq_cli.amax.mse import BINS_PER_LEVEL, mse_amax, symmetric_errors
from ptq_cli.amax.percentile import max_amax, percentile_amax
from ptq_cli.amax.weight_ranges import choose_weight_ranges
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import PtqError, RecipeValueError, UnknownNameError
from ptq_cli.core.formats import IntegerFormat, PerAxis, PerTensor
from ptq_cli.quantizers.scaled.tensor_quantizer import Calibrator
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import AmaxSettings
from tests.golden.verdicts import Arrays, Case, NotCoveredError, OnPurposeError, require

ON_PURPOSE = {
    "no data": "theirs is None; ours is 0, and a calibration without data is refused before that",
    "percentile 0": "theirs is 0, which quantizes everything to 0; a recipe with it is refused",
    "zeros are the percentile": "theirs is 0; ours is the smallest bin above 0",
    "empty low bins": (
        "where a candidate clips everything theirs is NaN, or 0 for a single bin, and counts as the smallest "
        "divergence; ours is infinite, or large"
    ),
    "few bins a level": (
        "with fewer than 8 bins to a level theirs takes a bin's values to be where its center is, and how "
        "far that is from a level is chance; ours takes the error within the range to be that of evenly "
        "spread values, a step² / 12 each"
    ),
    "per channel": "theirs refuses a histogram per channel; ours decides a channel by its own statistics",
    "max of a whole weight": "theirs fails on it",
    "entropy of weights": "theirs refuses it; ours decides weights by every method",
}
# Relative distance of two mean squared errors that are as good as equal: theirs are sums in float32.
NEAR = 1e-5

DEFAULT_PERCENTILE = 99.99
DEFAULT_START_BIN = 128


def replay(case: Case, arrays: Arrays) -> None:
    """Return if ours agrees with what was recorded, otherwise raise one of the verdicts."""
    functions = {
        "MaxCalibrator": _max,
        "HistogramCalibrator": _histogram,
        "HistogramCalibrator_mutation": _mutation,
        "calibrate_weights": _weights,
    }
    if case["function"] not in functions:
        raise NotCoveredError(case["function"])
    functions[case["function"]](case, arrays)


def _batches(case: Case, arrays: Arrays) -> list[np.ndarray]:
    return [arrays[key] for key in case.get("inputs", {}).get("batches", [])]


def _statistics(batches: list[np.ndarray], collector: MaxCollector | HistogramCollector) -> TensorStatistics:
    for array in batches:
        require(collector.update(array), "the samples hold NaN or Inf")
    return collector.statistics()


def _max(case: Case, arrays: Arrays) -> None:
    batches = _batches(case, arrays)
    if not batches:
        raise OnPurposeError("no data")
    axes = _axes(case, batches[0].ndim)
    if "raises" in case:
        try:
            _amax(batches, axes)
        except PtqError:
            return
        require(False, f"the reference raises {case['raises']}, ours does not")
    found = _amax(batches, axes)
    recorded = np.ravel(arrays[case["outputs"]["amax"]])
    require(np.array_equal(found, recorded), f"amax is {found[:4]}, recorded is {recorded[:4]}")


def _amax(batches: list[np.ndarray], axes: tuple[int, ...]) -> np.ndarray:
    if not axes:
        return np.array([max_amax(_statistics(batches, MaxCollector()))], np.float32)
    # Activations have one range; only a quantizer keeps axes.
    calibrator = Calibrator("max", axes)
    for array in batches:
        calibrator.update(torch.tensor(array))
    found: np.ndarray = calibrator.amax(AmaxSettings(method="max"), IntegerFormat(8, signed=True)).numpy()
    return found.ravel()


def _axes(case: Case, rank: int) -> tuple[int, ...]:
    """Return the axes that are kept, none for one amax of the tensor."""
    axis = case["params"].get("axis")
    axes = axis["tuple"] if isinstance(axis, dict) else [] if axis is None else [axis]
    return tuple(item % rank for item in axes)


def _histogram(case: Case, arrays: Arrays) -> None:
    params = case["params"]
    if "bad_percentile" in case["tags"]:
        _require_raises(
            RecipeValueError, lambda: check_recipe(Recipe(amax=AmaxSettings(percentile=params["percentile"])))
        )
        return
    if "bad_method" in case["tags"] and params["method"] == "max":
        # Theirs has no such method of a histogram; ours is the same from ranges and from histograms.
        check_amax_settings(AmaxSettings(method="max"))
        return
    if "bad_method" in case["tags"]:
        _require_raises(UnknownNameError, lambda: check_amax_settings(AmaxSettings(method=params["method"])))
        return
    if "raises" in case:
        require("per_axis" in case["tags"], f"the reference raises {case['raises']}")
        raise OnPurposeError("per channel")
    batches = _batches(case, arrays)
    if not batches:
        raise OnPurposeError("no data")
    if params.get("skip_zeros"):
        batches = [array[array != 0] for array in batches]
    statistics = _statistics(batches, HistogramCollector())
    if params["method"] == "percentile":
        recorded = float(arrays[case["outputs"]["amax"]])
        _percentile(params["percentile"], statistics, recorded, _bins_and_width(case)[1])
        return
    _require_view(case, batches, statistics)
    _searched(case, arrays, batches)


def _bins_and_width(case: Case) -> tuple[int, float]:
    """Return how many bins theirs ended with, and the width that the first batch gave them."""
    trace = case["values"]["hist_trace"]
    return int(trace[-1][0]), float(trace[0][2] / trace[0][0])


def _percentile(percentile: float, statistics: TensorStatistics, recorded: float, width: float) -> None:
    if percentile == 0:
        _require_raises(
            RecipeValueError, lambda: check_recipe(Recipe(amax=AmaxSettings(percentile=percentile)))
        )
        raise OnPurposeError("percentile 0")
    found, largest = percentile_amax(statistics, percentile), max_amax(statistics)
    if recorded == 0:
        require(statistics.zeros >= percentile / 100 * statistics.count, f"amax is {found}, recorded is 0")
        raise OnPurposeError("zeros are the percentile")
    ours = [found]
    rank = Fraction(str(percentile)) * statistics.count / 100
    if rank.denominator == 1:
        # A whole number of values: the rounding of their float sum may take one value more.
        one_more = 100 * (int(rank) + 0.5) / statistics.count
        ours.append(percentile_amax(statistics, min(one_more, 100.0)))
    # Theirs is the lower edge of the percentile's bin, and may lie above the largest value where bins were
    # appended; ours is the upper edge of our bin, and at most the largest value.
    least, most = min(recorded, largest), recorded + width + largest / 2048
    require(
        found <= largest and any(least <= item <= most for item in ours),
        f"amax is {found}, recorded is {recorded}, whose bins are {width} wide",
    )


def _require_view(case: Case, batches: list[np.ndarray], statistics: TensorStatistics) -> None:
    """Require that the view of our statistics has every value as near to its place as we promise.

    What is kept tells 2,048 magnitudes of an octave apart, so one of our bins is at most the largest
    magnitude / 2,048 wide, and a value is no further from its place than that. A reference histogram that
    grows with its batches ends with up to 4,400 bins, which are narrower: one of theirs is not promised.
    """
    bins, _ = _bins_and_width(case)
    away = math.ceil(bins / BINS)
    view = linear_view(statistics, bins)
    exact = histogram_of_values(np.concatenate([array.ravel() for array in batches]), bins)
    ours, true = np.cumsum(view.magnitudes), np.cumsum(exact.magnitudes)
    require(
        (ours[away:] >= true[:-away]).all() and (ours[:-away] <= true[away:]).all() and ours[-1] == true[-1],
        f"the linear view of the statistics has a value more than {away} of {bins} bins away",
    )


def _searched(case: Case, arrays: Arrays, batches: list[np.ndarray]) -> None:
    params, recorded = case["params"], float(arrays[case["outputs"]["amax"]])
    _, width = _bins_and_width(case)
    histogram = _recorded_histogram(case, arrays, batches)
    found = _search(params, histogram).amax
    # Their bin 2048 may end above the largest value, where ours ends.
    if abs(found - min(recorded, histogram.full_amax)) <= width * 1.001:
        return
    if params["method"] == "entropy" and _clips_everything(histogram, recorded, width):
        require(found > recorded, f"amax is {found}, recorded is {recorded} in empty low bins")
        raise OnPurposeError("empty low bins")
    if params["method"] == "mse" and _is_near(case, arrays, found):
        return
    if params["method"] == "mse" and histogram.bins < BINS_PER_LEVEL * _format(params).qmax:
        ours, theirs = symmetric_errors(histogram, np.array([found, recorded]), _format(params))
        require(ours <= theirs * (1 + NEAR), f"amax is {found}, and the error of {recorded} is smaller")
        raise OnPurposeError("few bins a level")
    require(False, f"amax is {found}, recorded is {recorded}, whose bins are {width} wide")


def _search(params: Case, histogram: LinearHistogram) -> Choice:
    bits, unsigned = params["num_bits"], params["unsigned"]
    start_bin, stride = params.get("start_bin", DEFAULT_START_BIN), params.get("stride", 1)
    if params["method"] == "entropy":
        return entropy_amax(histogram, 1 << (bits - 1 + unsigned), start_bin=start_bin, stride=stride)
    return mse_amax(histogram, _format(params), start_bin=start_bin, stride=stride)


def _format(params: Case) -> IntegerFormat:
    return IntegerFormat(
        params["num_bits"], signed=not params["unsigned"], narrow_range=not params["unsigned"]
    )


def _recorded_histogram(case: Case, arrays: Arrays, batches: list[np.ndarray]) -> LinearHistogram:
    """Return the counts that theirs searched, whose bins grew with the batches, less the exact zeros."""
    counts = arrays[case["outputs"]["hist"]].astype(np.int64)
    zeros = sum(int(np.count_nonzero(array == 0)) for array in batches)
    counts[0] -= min(zeros, counts[0])
    largest = max(float(np.max(np.abs(array), initial=0.0)) for array in batches)
    top = float(case["values"]["hist_trace"][-1][2])
    return LinearHistogram(
        negative=np.zeros_like(counts), positive=counts, top=top, low=0.0, high=min(largest, top), zeros=zeros
    )


def _clips_everything(histogram: LinearHistogram, recorded: float, width: float) -> bool:
    """Tell whether the recorded range keeps at most one occupied bin, bin 0 not counted."""
    return bool(np.count_nonzero(histogram.magnitudes[1 : round(recorded / width)]) <= 1)


def _is_near(case: Case, arrays: Arrays, found: float) -> bool:
    """Tell whether theirs finds our range as good as its own."""
    if "objective" not in case["outputs"]:
        return False
    objective = arrays[case["outputs"]["objective"]].astype(np.float64)
    _, width = _bins_and_width(case)
    start_bin, stride = case["params"].get("start_bin", DEFAULT_START_BIN), case["params"].get("stride", 1)
    place = round((found / width - 0.5 - start_bin) / stride)
    return 0 <= place < objective.size and objective[place] <= objective.min() * (1 + NEAR)


def _mutation(case: Case, arrays: Arrays) -> None:
    batches = _batches(case, arrays)
    histogram = histogram_of_values(np.concatenate(batches), case["params"]["num_bins"])
    before = histogram.magnitudes.copy()
    entropy_amax(histogram, 128, stride=case["params"]["stride"])
    require(np.array_equal(histogram.magnitudes, before), "the search changed the histogram")


def _weights(case: Case, arrays: Arrays) -> None:
    params, weight = case["params"], arrays[case["inputs"]["weight"]]
    if "raises" in case:
        reason = "entropy of weights" if params["method"] == "entropy" else "max of a whole weight"
        _require_weight_is_decided(params, weight)
        raise OnPurposeError(reason)
    recorded = arrays[case["outputs"]["amax"]]
    channels = [weight]
    if params["perchannel"]:
        channels = list(np.moveaxis(weight, recorded.shape.index(max(recorded.shape)), 0))
    for channel, theirs in zip(channels, recorded.ravel().tolist(), strict=True):
        _weight_channel(params, channel, theirs)


def _require_weight_is_decided(params: Case, weight: np.ndarray) -> None:
    granularity = PerAxis(0) if params["perchannel"] else PerTensor()
    settings = AmaxSettings(weight_method=params["method"])
    ranges = choose_weight_ranges(weight, granularity, settings, IntegerFormat(8, signed=True))
    is_inside = (ranges.amax > 0) & (ranges.amax <= np.abs(weight).max())
    require(bool(is_inside.all()), "a range is empty or too wide")


def _weight_channel(params: Case, channel: np.ndarray, recorded: float) -> None:
    bins = params.get("num_bins", 2048)
    width = float(np.abs(channel).max()) / bins
    settings = AmaxSettings(
        percentile=params.get("percentile", DEFAULT_PERCENTILE), weight_method=params["method"], bins=bins
    )
    if params["method"] in ("entropy", "mse"):
        amax = _search(params, histogram_of_values(channel, bins)).amax
    else:
        amax = float(choose_weight_ranges(channel, PerTensor(), settings, _format(params)).amax)
    if params["method"] == "percentile":
        _percentile(settings.percentile, _statistics([channel], HistogramCollector()), recorded, width)
        # From the values there is no bin to round up to; a whole number of values may be one more.
        require(amax >= recorded, f"amax is {amax}, recorded is {recorded}")
        return
    allowed = 0.0 if params["method"] == "max" else width * 1.001
    require(
        abs(amax - recorded) <= allowed,
        f"amax is {amax}, recorded is {recorded}, whose bins are {width} wide",
    )


def _require_raises(kind: type[PtqError], call: object) -> None:
    try:
        call()  # type: ignore[operator]
    except kind:
        return
    require(False, f"the reference refuses it, ours raises no {kind.__name__}")
