"""Quantizers of weights: their protocol, stored weights, and the family of scaled integers."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.finish import ANY_SCALE, ScaleRules
from ptq_cli.amax.weight_ranges import WeightRanges, choose_weight_ranges
from ptq_cli.core.arithmetic import FloatArray, QuantParameters, quantize, scale_from_amax
from ptq_cli.core.formats import Granularity, IntegerFormat, PerAxes, PerAxis, PerTensor
from ptq_cli.core.pair_sums import within_pairs
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import release_tensor
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.preserved_sums import preserve_sums
from ptq_cli.recipe.sections import AmaxSettings

BYTE, HALF_BYTE, QUARTER_BYTE = 8, 4, 2


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredWeight:
    """A weight as the file holds it.

    Attributes:
        integers: signed integers, or unsigned indices into ``table``; of a large model in the file of the
            quantized model.
        bits: 8; 4 to store two in a byte, as INT4 or UINT4; 2 for four in a byte.
        table: what an index stands for: integers, which a DequantizeLinear reads, or floats, the values.
        offsets: added to the indices to find the table of each channel in one list of them; None for one.
        tensor_scale: what the scales of blocks are multiplied by, if they are 8-bit floats.

    Shapes:
        integers: the weight's; table: (n,); offsets broadcast to the weight.
    """

    integers: Array | ir.ExternalTensor
    bits: int = BYTE
    table: Array | None = None
    offsets: Array | None = None
    tensor_scale: np.float32 | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape."""
        if isinstance(self.integers, ir.ExternalTensor):
            return tuple(self.integers.shape.numpy())
        return self.integers.shape

    def array(self) -> Array:
        """Return the integers, each in an element of its own."""
        if not isinstance(self.integers, ir.ExternalTensor):
            return self.integers
        try:
            found = self.integers.numpy()
            if self.bits > HALF_BYTE:
                return np.array(found)
            return found.astype(np.int8 if self.integers.dtype.is_signed() else np.uint8)
        finally:
            release_tensor(self.integers)

    def values(self) -> Array:
        """Return the integers that a DequantizeLinear reads."""
        return self.array() if self.table is None else self.table[self.array()]


@dataclass(frozen=True)
class WeightChoice:
    """Decision about a weight before its bias is looked at; no parameters for values of a codebook.

    It is ``unsearched`` if the amax method had only one candidate in every channel.
    """

    parameters: QuantParameters | None
    unsearched: bool = False


class WeightQuantizer(Protocol):
    """A family of quantizers with its parameters, for one weight."""

    @property
    def rules(self) -> ScaleRules:
        """The rules of its scales."""
        ...

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return the parameters of a weight."""
        ...

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the weight as the file holds it."""
        ...


Memory = dict[Hashable, WeightChoice | StoredWeight]


@dataclass(frozen=True)
class RememberedQuantizer:
    """A quantizer that computes once what is asked of it again: trials often differ in activations alone."""

    own: WeightQuantizer
    memory: Memory = field(compare=False, repr=False)

    @property
    def rules(self) -> ScaleRules:
        """The rules of its scales."""
        return self.own.rules

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return the parameters of a weight, which is always the same at the same site."""
        key = self.own, site, site.pairs
        found = self.memory.get(key)
        if not isinstance(found, WeightChoice):
            found = self.memory[key] = self.own.choose(weight, site)
        return found

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the weight as the file holds it; a bias may have widened a scale since."""
        grid = (parameters.scale.tobytes(), parameters.zero_point.tobytes()) if parameters is not None else ()
        key = self.own, site, site.pairs, grid
        found = self.memory.get(key)
        if not isinstance(found, StoredWeight):
            found = self.memory[key] = self.own.store(weight, site, parameters)
        return found


@dataclass(frozen=True)
class ScaledQuantizer:
    """Integers spread evenly over [-amax, amax]; ``packed`` ones of 4 bits or fewer are two in a byte."""

    settings: AmaxSettings
    packed: bool = False
    rules: ScaleRules = ANY_SCALE

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return a scale for each output channel, or one where the site has no axis; of zeros it is 1."""
        ranges = weight_ranges(weight, site, self.settings)
        scale = scale_from_amax(ranges.amax, site.format)
        return WeightChoice(parameters_of(scale, site), ranges.unsearched)

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the integers that QuantizeLinear gives, or those beside them that preserve sums."""
        assert parameters is not None  # noqa: S101 - a scaled weight has them
        integers = nearest_integers(weight, site, parameters)
        if site.preserves_sums and site.axis is not None and isinstance(site.format, IntegerFormat):
            integers = preserve_sums(integers, weight, parameters, site.axis, site.pairs)
        return StoredWeight(integers=integers, bits=storage_bits(site, self.packed))


def nearest_integers(weight: FloatArray, site: WeightSite, parameters: QuantParameters) -> Array:
    """Return the integers that QuantizeLinear gives, of which no pair exceeds what a site allows."""
    integers = quantize(weight, parameters)
    if site.pairs is not None:
        integers = within_pairs(integers, site.pairs)
    return integers


def storage_bits(site: WeightSite, packed: bool) -> int:
    """Return how many bits of the file an integer takes."""
    if site.block_kernel and site.format.bits <= HALF_BYTE:
        return QUARTER_BYTE if site.format.bits <= QUARTER_BYTE else HALF_BYTE
    return HALF_BYTE if packed and site.format.bits <= HALF_BYTE else BYTE


def weight_ranges(weight: FloatArray, site: WeightSite, settings: AmaxSettings) -> WeightRanges:
    """Return the symmetric ranges of a weight: (C,) along the site's axis, (D, C) per direction, or one."""
    return choose_weight_ranges(weight, granularity_of(site), settings, site.format)


def parameters_of(scale: FloatArray, site: WeightSite) -> QuantParameters:
    """Return a weight's parameters; its zero point is 0."""
    return QuantParameters(scale, np.zeros(scale.shape, np.int64), site.format, granularity_of(site))


def granularity_of(site: WeightSite) -> Granularity:
    """Return how much of a weight shares a scale."""
    if site.axis is None:
        return PerTensor()
    return PerAxes((0, site.axis)) if site.per_direction else PerAxis(site.axis)
