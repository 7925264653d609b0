"""The quantizers of weights that a recipe may name, each as what ``qdq`` asks of one.

What a family computes is computed by ``ptq_cli.quantizers``; here its results become arrays. PyTorch is
imported where it is needed: a scaled weight needs none.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import bits_before_point
from ptq_cli.core.arithmetic import ZERO_AMAX, FloatArray, QuantParameters
from ptq_cli.core.formats import FLOAT4_E2M1, FloatFormat
from ptq_cli.core.pair_sums import widened_for_pairs, within_pairs
from ptq_cli.models.narrow_floats import to_half
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.block_weights import BlockQuantizer, TwoLevelQuantizer
from ptq_cli.qdq.write.weight_quantizer import (
    BYTE,
    HALF_BYTE,
    ScaledQuantizer,
    StoredWeight,
    WeightChoice,
    WeightQuantizer,
    granularity_of,
    nearest_integers,
    parameters_of,
    storage_bits,
    weight_ranges,
)
from ptq_cli.recipe.quantizer_families import (
    PLAIN,
    CenterWeights,
    DorefaWeights,
    FixedPointWeights,
    ScaledWeights,
    StepWeights,
    WeightFamily,
)
from ptq_cli.recipe.sections import AmaxSettings


def weight_quantizer(family: WeightFamily, settings: AmaxSettings, *, packed: bool) -> WeightQuantizer:
    """Return a family's quantizer.

    Args:
        family: with its parameters.
        settings: whose ``weight_method`` decides amax where the family has one.
        packed: the target unpacks 4-bit integers.
    """
    match family:
        case ScaledWeights():
            return _scaled_quantizer(family, settings, packed=packed)
        case FixedPointWeights():
            return FixedPointQuantizer(family, settings, packed)
        case StepWeights():
            return StepQuantizer(family, settings, packed)
        case DorefaWeights():
            return DorefaQuantizer(family, settings, packed)
        case CenterWeights():
            return CenterWeightQuantizer(family, packed)


def _scaled_quantizer(family: ScaledWeights, settings: AmaxSettings, *, packed: bool) -> WeightQuantizer:
    if family.dtype == FLOAT4_E2M1.name:
        return TwoLevelQuantizer(settings)
    if family.block_size is not None:
        return BlockQuantizer(settings, packed)
    return ScaledQuantizer(settings, packed)


@dataclass(frozen=True)
class FixedPointQuantizer:
    """Integers times powers of two: ``quantizers.fixed.fixed_point_integers``."""

    family: FixedPointWeights
    settings: AmaxSettings
    packed: bool

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return the power of two that alpha finds, that of ``integer``, or the one that holds each amax."""
        if self.family.alpha != PLAIN:
            return WeightChoice(parameters_of(self._found(weight, site), site))
        if self.family.integer is not None:
            return WeightChoice(parameters_of(_step_of(self.family.integer, self.family.bits), site))
        ranges = weight_ranges(weight, site, self.settings)
        whole = np.vectorize(bits_before_point)(np.maximum(ranges.amax, ZERO_AMAX))
        return WeightChoice(parameters_of(_step_of(whole, self.family.bits), site), ranges.unsearched)

    def fit(self, parameters: QuantParameters) -> QuantParameters:
        """Return the next powers of two."""
        return replace(parameters, scale=next_powers_of_two(parameters.scale))

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the integers: with a found alpha halves go away from zero, as in QKeras."""
        found = _required(parameters)
        if self.family.alpha == PLAIN:
            return StoredWeight(
                integers=nearest_integers(weight, site, found), bits=storage_bits(site, self.packed)
            )
        import torch

        from ptq_cli.quantizers.fixed_point_format import AutoScale
        from ptq_cli.quantizers.fixed_point_integers import quantize_fixed_point

        # QKeras' scale is in units of the whole range, which has 2^(bits - 1) steps.
        reported = torch.tensor(found.scale * np.float32(2.0 ** (self.family.bits - 1)))
        auto = AutoScale(
            axis=site.axis, frozen=reported.reshape(granularity_of(site).broadcast_shape(weight.shape))
        )
        result = quantize_fixed_point(
            torch.tensor(weight), self.family.bits, alpha=self.family.alpha, auto=auto
        )
        integers = result.integers.numpy()
        if site.pairs is not None:
            integers = within_pairs(integers, site.pairs)
        return StoredWeight(integers=integers, bits=storage_bits(site, self.packed))

    def _found(self, weight: FloatArray, site: WeightSite) -> FloatArray:
        import torch

        from ptq_cli.quantizers.fixed_point_format import AutoScale, FixedPointFormat, Rounding, steps_of

        steps = steps_of(
            torch.tensor(weight),
            FixedPointFormat(self.family.bits),
            self.family.alpha,
            AutoScale(axis=site.axis),
            Rounding(),
        )
        scale: FloatArray = steps.scale.reshape(granularity_of(site).scale_shape(weight.shape)).numpy()
        return scale


@dataclass(frozen=True)
class StepQuantizer:
    """Multiples of one step, saturating: ``quantizers.step``."""

    family: StepWeights
    settings: AmaxSettings
    packed: bool

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return the step that is given, or the one with which the largest integer stands for amax."""
        if self.family.step is not None:
            return WeightChoice(parameters_of(np.asarray(self.family.step, np.float32), site))
        return ScaledQuantizer(self.settings).choose(weight, site)

    def fit(self, parameters: QuantParameters) -> QuantParameters:
        """Return the parameters: any step will do."""
        return parameters

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return how many steps each value is."""
        return StoredWeight(
            integers=nearest_integers(weight, site, _required(parameters)),
            bits=storage_bits(site, self.packed),
        )


@dataclass(frozen=True)
class DorefaQuantizer:
    """Odd integers times half the distance of two levels: ``quantizers.dorefa_export``."""

    family: DorefaWeights
    settings: AmaxSettings
    packed: bool

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return ``amax / (2^bits - 1)`` of each output channel."""
        ranges = weight_ranges(weight, site, self.settings)
        # There is no level at 0: a channel of zeros gets levels as near to it as nothing.
        amax = np.maximum(ranges.amax, ZERO_AMAX)
        scale = (amax / ((1 << self.family.bits) - 1)).astype(np.float32)
        found = parameters_of(np.asarray(scale), site)
        if site.pairs is not None:
            # Only odd integers are levels, and none can give way: each lies up to one beyond its real number.
            rule = replace(site.pairs, largest=site.pairs.largest - 2)
            wide = widened_for_pairs(
                found.scale, weight, found.granularity, rule, (1 << self.family.bits) - 1
            )
            found = replace(found, scale=wide)
        return WeightChoice(found, ranges.unsearched)

    def fit(self, parameters: QuantParameters) -> QuantParameters:
        """Return the parameters: any scale will do."""
        return parameters

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the k-bit numbers and the table of odd integers; or these, where nothing is packed."""
        import torch

        from ptq_cli.quantizers.dorefa import encode_dorefa

        scale = torch.tensor(_required(parameters).scale)
        levels = encode_dorefa(torch.tensor(weight), scale, self.family.bits, axis=site.axis)
        indices, table = levels.indices.numpy(), levels.table.numpy()
        bits = storage_bits(site, self.packed)
        return (
            StoredWeight(integers=indices, bits=bits, table=table)
            if bits == HALF_BYTE
            else StoredWeight(integers=table[indices])
        )


@dataclass(frozen=True)
class CenterWeightQuantizer:
    """Indices of the nearest centers, and the centers: ``quantizers.centers.center_indices``."""

    family: CenterWeights
    packed: bool

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:  # noqa: ARG002 - one interface
        """Return no parameters: values come out of the codebook."""
        return WeightChoice(None)

    def fit(self, parameters: QuantParameters) -> QuantParameters:
        """Return the parameters; no bias is stored in a scale of these weights."""
        return parameters

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:  # noqa: ARG002 - one interface
        """Learn the centers, and return an index for each value."""
        import torch

        from ptq_cli.quantizers.center_indices import encode_centers
        from ptq_cli.quantizers.learning import learn_centers

        values, family = torch.tensor(weight), self.family
        generator = torch.Generator().manual_seed(family.seed)
        centers = learn_centers(values, family.centers, generator, axis=site.axis, restarts=family.restarts)
        found = encode_centers(values, centers, axis=site.axis)
        bits = found.bits if self.packed else BYTE
        offsets = None if site.axis is None else found.offsets().numpy()
        return StoredWeight(
            integers=found.indices.numpy(),
            bits=bits,
            table=found.codebook.reshape(-1).numpy(),
            offsets=offsets,
        )


def _step_of(integer: npt.ArrayLike, bits: int) -> FloatArray:
    step: FloatArray = np.asarray(np.ldexp(np.float32(1.0), np.asarray(integer) - bits + 1), np.float32)
    return step


def next_powers_of_two(scale: FloatArray) -> FloatArray:
    """Return the smallest powers of two that are not below the scales.

    Shapes:
        scale: any; the result has the same.

    Example:
        >>> next_powers_of_two(np.float32([0.25, 0.26, 3.0])).tolist()
        [0.25, 0.5, 4.0]
    """
    mantissa, exponent = np.frexp(scale)
    result: FloatArray = np.ldexp(np.float32(1.0), np.where(mantissa == 0.5, exponent - 1, exponent))
    return np.asarray(result, np.float32)


def _required(parameters: QuantParameters | None) -> QuantParameters:
    if parameters is None:
        raise ValueError("a weight behind a DequantizeLinear has parameters")
    return parameters


# Scales of float16: rounded before anything is quantized with them, as the runtime will read them.


SMALLEST_NORMAL = np.float32(2.0**-14)
"""Of float16."""


def with_half_scale(parameters: QuantParameters) -> QuantParameters:
    """Return parameters whose scale is a float16.

    Edge case:
        The scale of a float format is at least the smallest normal float16: its values then only lie in lower
        binades, which costs nothing. That of integers may be subnormal.

    Example:
        >>> from ptq_cli.core.formats import FLOAT8_E4M3FN, INT8
        >>> tiny = QuantParameters(np.float32(1e-6), np.int64(0), INT8)
        >>> float(with_half_scale(tiny).scale)
        1.0132789611816406e-06
        >>> float(with_half_scale(replace(tiny, format=FLOAT8_E4M3FN)).scale)
        6.103515625e-05
    """
    if parameters.format == FLOAT4_E2M1:
        return parameters  # Its scales are E4M3 and one float32.
    scale = np.asarray(to_half(parameters.scale).astype(np.float32))
    if isinstance(parameters.format, FloatFormat):
        scale = np.maximum(scale, SMALLEST_NORMAL)
    return replace(parameters, scale=np.asarray(scale, np.float32))


@dataclass(frozen=True)
class HalfScaleQuantizer:
    """A quantizer of weights whose scales are float16.

    Attributes:
        inner: decides everything else.
    """

    inner: WeightQuantizer

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return what the inner one chooses, with scales of float16."""
        choice = self.inner.choose(weight, site)
        if choice.parameters is None:
            return choice
        return replace(choice, parameters=with_half_scale(choice.parameters))

    def fit(self, parameters: QuantParameters) -> QuantParameters:
        """Return what the inner one fits, with scales of float16."""
        return with_half_scale(self.inner.fit(parameters))

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the weight as the inner one stores it."""
        return self.inner.store(weight, site, parameters)
