"""Causes of a tensor's or a layer's loss, the options to try, and the amax method with a better range."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ptq_cli.amax.choice import expected_error
from ptq_cli.amax.decide import decide
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.analysis.judge import NoiseSums
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters, fake_quantize
from ptq_cli.core.formats import INT8_NARROW
from ptq_cli.core.pair_sums import PairRule, widened_for_pairs
from ptq_cli.evaluation.document.analysis_document import Cause
from ptq_cli.evaluation.document.report_document import SaturatingLayer
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.read.constant_values import ConstantValues
from ptq_cli.qdq.write.weight_quantizer import ScaledQuantizer, parameters_of
from ptq_cli.recipe.sections import AmaxSettings

GOOD_DB = 30.0  # a tensor above this SQNR, about 5 bits of a well used range, gets no finding
# Share of the noise above which clipping is the cause; used share of the range below which outliers are.
_MOST = 0.5
IMBALANCED = 4.0  # ratio of a channel's range to the median's at which a shared scale costs two bits
_FEW = 128  # number of integer values below which the format itself is the cause: 7 bits have 128
_MOST_BITS = 8  # widest integers of weights: more steps are not to be had
GAIN_DB = 1.0  # least gain of the output's SQNR for which leaving a layer in float is proposed


@dataclass(frozen=True)
class Finding:
    """A cause, its description and what to try; all empty if there is no cause."""

    cause: Cause = ""
    finding: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Use:
    """How an activation or a weight uses its integers.

    Attributes:
        sqnr_db: SQNR of its own quantization.
        clip_share: share of its noise that comes from values outside the range.
        clipped: share of such values.
        used: share of the range that the middle 99.9 % of the values occupy; None if that is not known.
        imbalance: largest magnitude of a channel divided by the median channel's, if all share a scale;
            otherwise None.
        levels: how many values an integer can have; 0 for a codebook.
        readers: the layers that read it.
        better: the amax method whose range is expected to be better; empty if none is.
        bits: of a weight's evenly spaced integers, as they were asked for; None of others.
        output_db: SQNR of what its layers make, where recovery chose a weight for that; None of others.
    """

    sqnr_db: float
    clip_share: float = 0.0
    clipped: float = 0.0
    used: float | None = None
    imbalance: float | None
    levels: int = 0
    readers: Sequence[str] = ()
    better: str = ""
    bits: int | None = None
    output_db: float | None = None


def activation_finding(use: Use, *, histograms: bool) -> Finding:
    """Cause of the loss of an activation that loses a lot."""
    if use.sqnr_db >= GOOD_DB:
        return Finding()
    # Without a histogram no method can be compared.
    better = f"--amax {use.better}" if use.better else ""
    remedy = better or (exclude(use.readers) if histograms else "--method histogram --amax mse")
    return _range_finding(use, remedy, " and cause most of the noise")


def weight_finding(use: Use, *, widened: float, quantizer: str = "") -> Finding:
    """Cause of the loss of a weight that loses a lot.

    ``widened`` is the share of the channels whose scale was widened for a large bias, ``quantizer`` that of a
    weight whose values are looked up.
    """
    # What recovery moved is further from the float weight on purpose.
    if (use.sqnr_db if use.output_db is None else use.output_db) >= GOOD_DB:
        return Finding()
    if widened:  # Checked before the number of steps, which it makes small.
        text = f"the scale of {percent(widened)} of the channels was widened so that the bias fits into int32"
        return Finding("bias overflow", text, exclude(use.readers))
    if use.levels == 0:
        remedy = "--set weights.quantizer=scaled" if use.bits is None else exclude(use.readers)
        return Finding("few steps", f"its values are {quantizer}", remedy)
    if use.levels < _FEW and use.bits != _MOST_BITS:
        return Finding("few steps", f"its integers have only {use.levels} values", "--weight-bits 8")
    if use.output_db is not None:
        return Finding()
    better = f"--set amax.weight_method={use.better}" if use.better else ""
    return _range_finding(use, better or exclude(use.readers))


def tensor_not_finite(model: str, sample: str) -> Finding:
    """Finding for a tensor that holds NaN or Inf.

    Example:
        >>> tensor_not_finite("quantized model", "sample 3 (x.npz[3])").finding
        'it holds NaN or Inf in the quantized model, first at sample 3 (x.npz[3])'
    """
    return Finding("not finite", f"it holds NaN or Inf in the {model}, first at {sample}")


def layer_not_finite(name: str, *, only_quantized: str, left_float: str, whole: str) -> Finding:
    """Finding for a layer whose quantization makes the output NaN or Inf, or whose floats do.

    Example:
        >>> layer_not_finite("log", only_quantized="sample 0 (a.png)", left_float="", whole="").remedy
        '--exclude log'
        >>> layer_not_finite("fc", only_quantized="", left_float="", whole="")
        Finding(cause='', finding='', remedy='')
    """
    if only_quantized:
        text = f"with only this layer quantized, the output holds NaN or Inf, first at {only_quantized}"
        return Finding("not finite", text, exclude([name]))
    if whole and not left_float:
        return Finding(
            "not finite", "with this layer in float, the output holds no NaN and no Inf", exclude([name])
        )
    if left_float and not whole:
        text = f"with only this layer in float, the output holds NaN or Inf, first at {left_float}"
        return Finding("not finite", text)
    return Finding()


def layer_finding(
    name: str,
    tensors: Sequence[tuple[float, str, Finding]],
    *,
    not_fused: str,
    gain_db: float | None,
    saturating: SaturatingLayer | None = None,
) -> Finding:
    """Cause of the loss of a layer, from the tensors that it reads and computes.

    Of each tensor, ``tensors`` has the SQNR of its own quantization, its name and its finding. ``not_fused``
    says why the layer computes in floats although its weight is quantized, and ``saturating`` what of its
    weight can saturate on this processor: then no option helps.
    """
    if saturating is not None:
        pairs = f"{saturating.pairs:,} of {saturating.of_pairs:,} pairs"
        text = f"{pairs} of its weights can saturate on this processor, which has no VNNI"
        return Finding("saturation", text)
    if not_fused:
        return Finding(
            "not fused", f"its weight is quantized, but it computes in floats: {not_fused}", exclude([name])
        )
    # A tensor that is not finite has no ratio; what it reads or another layer may be the reason.
    for _, tensor, found in sorted(tensors, key=lambda item: (math.isnan(item[0]), item[0])):
        if found.cause:
            return Finding(found.cause, f"'{tensor}': {found.finding}", found.remedy)
    if gain_db is not None and gain_db >= GAIN_DB:
        return Finding(
            "", f"with this layer in float, the output's SQNR is {gain_db:.1f} dB higher", exclude([name])
        )
    return Finding()


def exclude(layers: Sequence[str]) -> str:
    """Options that leave layers in float, quoted for a shell.

    Example:
        >>> exclude(["fc", "/conv 1"])
        "--exclude fc --exclude '/conv 1'"
    """
    return " ".join(f"--exclude {shlex.quote(name)}" for name in layers)


def percent(share: float) -> str:
    """A share as a percentage, with two significant digits."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 10 else f"{float(f'{value:.2g}'):.15g} %"


def _range_finding(use: Use, remedy: str, effect: str = "") -> Finding:
    """Finding for a tensor whose range or channels cost most."""
    if use.clip_share > _MOST:
        text = f"{percent(use.clipped)} of the values are outside the range{effect}"
        return Finding("clipping", text, remedy)
    if use.used is not None and use.used < _MOST:
        text = f"the middle 99.9 % of the values occupy {percent(use.used)} of the range"
        return Finding("outliers", text, remedy)
    if use.imbalance is not None and use.imbalance >= IMBALANCED:
        text = f"the widest channel's values are {use.imbalance:.1f} times as large as the median channel's"
        return Finding("channel imbalance", text, exclude(use.readers))
    return Finding()


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
