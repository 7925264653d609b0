"""The amax method that gives a tensor a better range, computed before it is proposed."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ptq_cli.amax.decide import decide
from ptq_cli.amax.expected_error import expected_error
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.analysis.sums import NoiseSums
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters, fake_quantize
from ptq_cli.core.formats import INT8_NARROW
from ptq_cli.core.pair_sums import PairRule, widened_for_pairs
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.read.constant_values import ConstantValues
from ptq_cli.qdq.write.weight_quantizer import ScaledQuantizer, parameters_of
from ptq_cli.recipe.sections import AmaxSettings

GAIN_DB = 1.0  # least gain in dB for which another method is proposed


def better_activation_method(
    statistics: TensorStatistics | None, parameters: QuantParameters, settings: AmaxSettings
) -> str:
    """Amax method whose range the calibration expects to be best; empty if none gains enough.

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
        >>> from ptq_cli.core.arithmetic import parameters_from_range
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = HistogramCollector()
        >>> collector.update(np.linspace(0.0, 1.0, 100_001, dtype=np.float32))
        True
        >>> too_wide = parameters_from_range(0.0, 9.0, UINT8)
        >>> better_activation_method(collector.statistics(), too_wide, AmaxSettings())
        'mse'
    """
    if statistics is None or statistics.histogram is None:
        return ""
    now = expected_error(statistics, statistics.histogram, parameters).sqnr_db
    symmetric = parameters.format.signed and int(parameters.zero_point) == 0
    expected = {}
    for method in METHODS:
        choice = decide(statistics, replace(settings, method=method), parameters.format, symmetric=symmetric)
        expected[method] = expected_error(statistics, statistics.histogram, choice.parameters).sqnr_db
    return _best(expected, now)


def better_weight_method(
    weight: ConstantValues, settings: AmaxSettings, pairs: PairRule | None = None
) -> str:
    """Amax method with the smallest error for a weight; empty if none gains enough, and in 4 bits.

    With ``pairs``, what two of its integers may add up to is limited for any method.

    Edge case: Empty for scales of blocks and for zero points, which these methods do not choose.
    """
    grid = weight.grid
    if grid is None or grid.scale is None or grid.block_size or weight.dtype != "int8":
        return ""
    if grid.zero_point is None or grid.zero_point.any():
        return ""
    site = WeightSite(tensor="weight", node="layer", input_index=1, format=INT8_NARROW, axis=weight.axis)
    expected = {}
    for method in METHODS:
        quantizer = ScaledQuantizer(replace(settings, weight_method=method))
        found = quantizer.choose(weight.floats, site).parameters
        if found is not None and pairs is not None:
            end = float(INT8_NARROW.qmax)
            scale = widened_for_pairs(found.scale, weight.floats, found.granularity, pairs, end)
            found = replace(found, scale=scale)
        if found is not None:
            expected[method] = _sqnr_db(weight, fake_quantize(weight.floats, found))
    # Integers that were chosen by more than their own error are judged by what their scale allows.
    nearest = fake_quantize(weight.floats, parameters_of(np.asarray(grid.scale, np.float32), site))
    return _best(expected, max(_sqnr_db(weight, weight.values), _sqnr_db(weight, nearest)))


def _sqnr_db(weight: ConstantValues, values: np.ndarray) -> float:
    sums = NoiseSums()
    sums.update(weight.floats[None], values[None], 1)
    return sums.sqnr_db


def _best(expected: Mapping[str, float], now: float) -> str:
    best = max(expected, key=expected.__getitem__, default="")
    return best if best and expected[best] >= now + GAIN_DB else ""
