"""From statistics and the recipe's amax settings to a range, its parameters, and the scale that is stored.

A scale has to lie on the grid of its quantizer and its type. That of a weight also has to be wide enough for
its bias to fit into int32, and for no two of its integers to exceed what a kernel adds up in 16 bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice, fixed_point_parameters, grid_of_range, signed_format, step_parameters
from ptq_cli.amax.method_registry import AUTO_METHOD, find_method, require_method
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import FixedGrid, FloatArray, QuantParameters, to_half
from ptq_cli.core.formats import FLOAT4_E2M1, FloatFormat, IntegerFormat, NumberFormat
from ptq_cli.core.pair_sums import PairRule, widened_for_pairs
from ptq_cli.recipe.quantizer_families import ActivationFamily, FixedPointActivations, StepActivations
from ptq_cli.recipe.sections import AmaxSettings

# Steps: half of int32; the other half is for the products that the kernel adds to it.
LARGEST_BIAS = 2**30
SMALLEST_BIAS = 1e-20  # A smaller bias counts as this one, so that its scale is a normal float32.
SMALLEST_HALF = np.float32(2.0**-14)  # The smallest normal float16.
# Only odd integers are levels, and none can give way: each of two lies up to one beyond its real number.
ODD_LEVELS_REACH = 2


@dataclass(frozen=True)
class ScaleRules:
    """What the scales of a tensor may be, whatever a method chose.

    Attributes:
        powers_of_two: a scale is the smallest power of two that is not below what is needed.
        half: a scale is a float16.
        largest_odd: the largest level of a quantizer whose levels are the odd integers; None of all others.
        fixed: what a kernel has built in; None if it takes any.
    """

    powers_of_two: bool = False
    half: bool = False
    largest_odd: int | None = None
    fixed: FixedGrid | None = None


ANY_SCALE = ScaleRules()


@dataclass(frozen=True, eq=False)
class BiasNeed:
    """A bias that is stored with the scale ``s_input * s_weight``.

    Attributes:
        values: in real units.
        input_scale: of the activation that the weight is multiplied with.

    Shapes: values: (C,), (1, C) or one element.
    """

    values: FloatArray
    input_scale: float


def finish_scale(
    parameters: QuantParameters, rules: ScaleRules = ANY_SCALE, wanted: FloatArray | None = None
) -> QuantParameters:
    """Parameters whose scales follow the rules; finished ones stay as they are.

    Args:
        parameters: with the scales that a method chose, or that were finished before.
        rules: of the tensor.
        wanted: scales to have in their place, before the rules; None for those that they have.

    Shapes: wanted: as the scale.
    Edge case: A float16 scale of a float format is at least the smallest normal one: its values then only lie
        in lower binades, which costs nothing. That of integers may be subnormal.

    Example:
        >>> from ptq_cli.core.formats import FLOAT8_E4M3FN, INT8
        >>> tiny = QuantParameters(np.float32(1e-6), np.int64(0), INT8)
        >>> float(finish_scale(tiny, ScaleRules(half=True)).scale)
        1.0132789611816406e-06
        >>> float(finish_scale(replace(tiny, format=FLOAT8_E4M3FN), ScaleRules(half=True)).scale)
        6.103515625e-05
        >>> float(finish_scale(tiny, ScaleRules(powers_of_two=True)).scale) == 2.0**-19
        True
    """
    if rules.fixed is not None:
        zeros = np.asarray(rules.fixed.zero_point, np.int64)
        return replace(parameters, scale=np.asarray(rules.fixed.scale, np.float32), zero_point=zeros)
    scale = parameters.scale if wanted is None else wanted
    if rules.powers_of_two:
        scale = next_powers_of_two(scale)
    if rules.half and parameters.format != FLOAT4_E2M1:  # Its scales are E4M3 and one float32.
        scale = to_half(scale).astype(np.float32)
        if isinstance(parameters.format, FloatFormat):
            scale = np.maximum(scale, SMALLEST_HALF)
    if scale is parameters.scale:
        return parameters
    return replace(parameters, scale=np.asarray(scale, np.float32))


def finish_weight(
    parameters: QuantParameters,
    rules: ScaleRules,
    weight: FloatArray,
    zero: npt.NDArray[np.bool_],
    *,
    pairs: PairRule | None = None,
    bias: BiasNeed | None = None,
) -> tuple[QuantParameters, int]:
    """A weight's finished parameters, and how many channels were widened for their bias.

    Args:
        parameters: that a method chose.
        rules: of the quantizer, and of the type that the graph computes in.
        weight: in real units.
        zero: which channels hold zeros only.
        pairs: what two neighbors along K may add up to; None for no limit.
        bias: of the layer; None if none is stored as integers.

    Shapes: weight: any; zero: as the scale.
    """
    found, widened = finish_scale(parameters, rules), 0
    if pairs is not None:
        found = finish_scale(found, rules, _for_pairs(found, rules, weight, pairs))
    if bias is not None:
        wanted, widened = fit_bias(found, bias, zero)
        found = finish_scale(found, rules, wanted)
    return found, widened


def finish_tied(
    parameters: QuantParameters, rules: ScaleRules, others: Sequence[QuantParameters]
) -> QuantParameters:
    """The parameters with the widest scale of all layers that share a weight and its quantizer.

    Otherwise each would have integers of its own.
    """
    scale = np.max([item.scale for item in others], axis=0)
    return parameters if np.array_equal(scale, parameters.scale) else finish_scale(parameters, rules, scale)


def _for_pairs(
    parameters: QuantParameters, rules: ScaleRules, weight: FloatArray, pairs: PairRule
) -> FloatArray:
    if rules.largest_odd is not None:
        end: float = rules.largest_odd
        pairs = replace(pairs, largest=pairs.largest - ODD_LEVELS_REACH)
    else:
        end = max(parameters.integers.qmax, -parameters.integers.qmin)
    return widened_for_pairs(parameters.scale, weight, parameters.granularity, pairs, float(end))


def fit_bias(
    parameters: QuantParameters, bias: BiasNeed, zero: npt.NDArray[np.bool_]
) -> tuple[FloatArray, int]:
    """A weight's scales, changed where its bias asks for it, and how many channels were widened.

    An int32 bias has the scale ``s_input * s_weight``. A channel with tiny weights and a large bias, as
    BatchNorm folding makes them, would overflow it: its scale is widened. A channel of zeros has no scale of
    its own to lose, and takes the one that holds its bias most finely.

    Args:
        parameters: of the weight.
        bias: of its layer.
        zero: which channels of the weight hold zeros only; they do not count as widened.

    Shapes: zero and the result: as the scale.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW, PerAxis
        >>> tiny = QuantParameters(np.float32([1e-9, 1.0]), np.zeros(2, np.int64), INT8_NARROW, PerAxis(0))
        >>> wide, channels = fit_bias(tiny, BiasNeed(np.float32([100.0, 0.5]), 1e-3), np.zeros(2, bool))
        >>> channels, bool(wide[0] > 1e-9), float(wide[1])
        (1, True, 1.0)
        >>> fine, channels = fit_bias(tiny, BiasNeed(np.float32([0.0, 0.5]), 1e-3), np.array([False, True]))
        >>> channels, bool(fine[1] < 1e-6)
        (0, True)
    """
    magnitude = np.abs(bias.values.astype(np.float64)).reshape(-1)
    if not parameters.scale.ndim:
        magnitude = np.max(magnitude, initial=0.0)
    needed = np.maximum(magnitude, SMALLEST_BIAS) / (bias.input_scale * LARGEST_BIAS)
    scale = parameters.scale.astype(np.float64)
    widened = (needed > scale) & ~zero
    refined = zero & (magnitude > 0.0)
    fitted = np.asarray(np.where(widened | refined, needed, scale), dtype=np.float32)
    return fitted, int(np.count_nonzero(widened))


def next_powers_of_two(scale: FloatArray) -> FloatArray:
    """The smallest powers of two that are not below the scales.

    Shapes: scale: any; the result has the same.

    Example:
        >>> next_powers_of_two(np.float32([0.25, 0.26, 3.0])).tolist()
        [0.25, 0.5, 4.0]
    """
    mantissa, exponent = np.frexp(scale)
    result: FloatArray = np.ldexp(np.float32(1.0), np.where(mantissa == 0.5, exponent - 1, exponent))
    return np.asarray(result, np.float32)


@dataclass(frozen=True)
class Decision:
    """Parameters of a tensor, and how they came about.

    Attributes:
        parameters: scale and zero point.
        method: the method's name, ``auto`` resolved.
        choice: the range it chose.
    """

    parameters: QuantParameters
    method: str
    choice: Choice


def check_amax_settings(settings: AmaxSettings) -> None:
    """Raise if the settings name no method.

    Raises: UnknownNameError: there is none of that name. PluginError: a plug-in with this name cannot be
        used.

    Example:
        >>> check_amax_settings(AmaxSettings(method="mse", weight_method="max"))
    """
    if settings.method != AUTO_METHOD:
        require_method(settings.method, more=(AUTO_METHOD,))
    require_method(settings.weight_method, "amax method of weights")


def resolve_method(settings: AmaxSettings, *, has_histogram: bool) -> str:
    """The method that ``auto`` stands for: percentile where histograms were kept, otherwise max.

    Example:
        >>> resolve_method(AmaxSettings(), has_histogram=True)
        'percentile'
        >>> resolve_method(AmaxSettings(), has_histogram=False)
        'max'
    """
    if settings.method != AUTO_METHOD:
        return settings.method
    return "percentile" if has_histogram else "max"


def decide_range(
    statistics: TensorStatistics, settings: AmaxSettings, format: NumberFormat, *, symmetric: bool
) -> Choice:
    """The range of a tensor.

    A symmetric one is [-amax, amax]. An asymmetric one need not be as far from 0 on both sides, so that a
    rare outlier on one side costs the other side nothing.

    Edge case: A symmetric tensor of an unsigned format has the zero point in the middle: its levels are those
        of the signed format.

    Raises: MissingStatisticError: the method needs a histogram that was not kept. UnknownNameError: there is
        no such method.

    Example:
        >>> import numpy as np
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = MaxCollector()
        >>> collector.update(np.array([-1.0, 3.0], np.float32))
        True
        >>> choice = decide_range(collector.statistics(), AmaxSettings(method="max"), UINT8, symmetric=False)
        >>> choice.low, choice.high
        (-1.0, 3.0)
    """
    name = resolve_method(settings, has_histogram=statistics.histogram is not None)
    method = find_method(name, more=(AUTO_METHOD,))
    # A float format has a value 0 and no zero point.
    if symmetric or isinstance(format, FloatFormat):
        return method.symmetric(statistics, settings, signed_format(format))
    return method.asymmetric(statistics, settings, format)


def decide(
    statistics: TensorStatistics,
    settings: AmaxSettings,
    format: NumberFormat,
    *,
    symmetric: bool,
    family: ActivationFamily | None = None,
    rules: ScaleRules = ANY_SCALE,
    within: tuple[float, float] | None = None,
) -> Decision:
    """Scale and zero point of an activation, and the range they come from.

    Args:
        statistics: of the tensor.
        settings: the method and its parameters.
        format: of the integers, or of floats of few bits.
        symmetric: the zero point is in the middle of the format.
        family: of the quantizer; None for a scaled one.
        rules: what the scale may be.
        within: beyond which a range of integers does not reach, unless it is symmetric.

    Shapes: scale and zero point: ().
    Edge case: A tensor that was always 0 gets scale 1.

    Raises: MissingStatisticError: the method needs a histogram that was not kept.

    Example:
        >>> import numpy as np
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = MaxCollector()
        >>> collector.update(np.array([0.0, 2.55], np.float32))
        True
        >>> decision = decide(collector.statistics(), AmaxSettings(method="max"), UINT8, symmetric=False)
        >>> round(float(decision.parameters.scale), 6), int(decision.parameters.zero_point)
        (0.01, 0)
    """
    choice = decide_range(statistics, settings, format, symmetric=symmetric)
    if within is not None and not symmetric and isinstance(format, IntegerFormat):
        choice = replace(choice, low=max(choice.low, within[0]), high=min(choice.high, within[1]))
    method = resolve_method(settings, has_histogram=statistics.histogram is not None)
    found = _parameters(choice, format, family, symmetric=symmetric)
    return Decision(finish_scale(found, rules), method, choice)


def _parameters(
    choice: Choice, format: NumberFormat, family: ActivationFamily | None, *, symmetric: bool
) -> QuantParameters:
    if isinstance(format, IntegerFormat):  # Only a scaled quantizer can be asked for a float format.
        if isinstance(family, FixedPointActivations):
            return fixed_point_parameters(choice, format, family.integer)
        if isinstance(family, StepActivations):
            return step_parameters(choice, format, family.step)
    return grid_of_range(choice.low, choice.high, format, symmetric=symmetric)
