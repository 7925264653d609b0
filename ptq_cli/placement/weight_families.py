"""How each family that a recipe names stores a weight or a table, its site, and the opset that it needs.

What a family computes is computed by ``ptq_cli.quantizers``; here its results become arrays. PyTorch is
imported where it is needed: a scaled weight needs none.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.choice import bits_before_point
from ptq_cli.amax.decide import ANY_SCALE, ScaleRules
from ptq_cli.core.arithmetic import ZERO_AMAX, FloatArray, QuantParameters
from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.formats import BYTE, FLOAT4_E2M1, FLOATS, FloatFormat, IntegerFormat
from ptq_cli.core.pair_sums import within_pairs
from ptq_cli.models.files.mapped_constants import is_turned
from ptq_cli.models.graph_reading import constant_shape, every_node
from ptq_cli.models.opset import QUARTER_BYTE_OPSET
from ptq_cli.models.pair_operators import FP4_BLOCK
from ptq_cli.placement.target_limits import MATRIX, block_rule
from ptq_cli.placement.tensor_settings import TensorSettings
from ptq_cli.plan.embedding_tables import table_bits, table_sites, tied_tables
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.proof.target_faults import FLOAT_OPSETS
from ptq_cli.qdq.write.block_weights import BlockQuantizer, TwoLevelQuantizer
from ptq_cli.qdq.write.weight_quantizer import (
    HALF_BYTE,
    PACKED_OPSET,
    QUARTER_BYTE,
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
from ptq_cli.recipe.check import described
from ptq_cli.recipe.declaration import FLOAT, STATIC, TENSOR
from ptq_cli.recipe.quantizer_families import (
    PLAIN,
    CenterWeights,
    DorefaWeights,
    FixedPointWeights,
    ScaledWeights,
    StepWeights,
    WeightFamily,
)
from ptq_cli.recipe.sections import FLOAT16, AmaxSettings


def weight_quantizer(
    family: WeightFamily, settings: AmaxSettings, *, packed: bool, half: bool = False
) -> WeightQuantizer:
    """Return a family's quantizer; ``packed`` targets unpack 4-bit integers, ``half`` scales are float16."""
    match family:
        case ScaledWeights() if family.dtype == FLOAT4_E2M1.name:
            return TwoLevelQuantizer(settings)
        case ScaledWeights():
            scaled = ScaledQuantizer if family.block_size is None else BlockQuantizer
            return scaled(settings, packed, ScaleRules(half=half))
        case FixedPointWeights():
            return FixedPointQuantizer(family, settings, packed, ScaleRules(powers_of_two=True, half=half))
        case StepWeights():
            return StepQuantizer(family, settings, packed, ScaleRules(half=half))
        case DorefaWeights():
            rules = ScaleRules(half=half, largest_odd=(1 << family.bits) - 1)
            return DorefaQuantizer(family, settings, packed, rules)
        case CenterWeights():
            return CenterWeightQuantizer(family, packed)


def weight_site(site: WeightSite, family: WeightFamily, shape: Sequence[int]) -> WeightSite:
    """Return a weight's site with a family's integers, and the axis along which its scales differ.

    Raises: RecipeValueError: blocks do not divide the axis.
    """
    match family:
        case ScaledWeights():
            return _scaled_site(site, family, shape)
        case FixedPointWeights() if family.alpha == PLAIN:
            axis = site.axis if family.integer is None else None
            return replace(site, format=IntegerFormat(family.bits, signed=True), axis=axis)
        case FixedPointWeights() | DorefaWeights():
            return replace(site, format=IntegerFormat(family.bits, signed=True, narrow_range=True))
        case StepWeights():
            return replace(site, format=IntegerFormat(family.bits, signed=True), axis=None)
        case CenterWeights():
            return replace(site, axis=None if family.granularity == TENSOR else site.axis, kernel="")


def _scaled_site(site: WeightSite, family: ScaledWeights, shape: Sequence[int]) -> WeightSite:
    found = _formatted(site, family)
    if found.format == FLOAT4_E2M1:  # Its blocks lie along the inputs, whose products are added.
        return replace(found, axis=1 - (site.axis or 0), block_size=FP4_BLOCK)
    if family.block_size is not None:
        return _in_blocks(found, family.block_size, shape)
    if family.granularity == TENSOR:
        return replace(found, axis=None, per_direction=False)
    # A DequantizeLinear has scales along one axis only.
    is_recurrent = site.block_axis is not None and (site.as_product or site.kernel)
    return replace(found, per_direction=bool(is_recurrent or site.per_direction) and shape[0] > 1)


def _formatted(site: WeightSite, family: ScaledWeights) -> WeightSite:
    if family.dtype is not None:  # Rounded once, here: no runtime rounds it again.
        return replace(site, format=FLOATS[family.dtype], as_pair=False, as_product=False, kernel="")
    assert isinstance(site.format, IntegerFormat)  # noqa: S101 - a target's own are integers
    return replace(site, format=replace(site.format, bits=family.bits))


def _in_blocks(site: WeightSite, size: int, shape: Sequence[int]) -> WeightSite:
    # The axis of the input channels, whose products a kernel adds.
    axis = len(shape) - 2 if site.axis is None else 1 - site.axis
    axis = axis if site.block_axis is None else site.block_axis
    if shape[axis] % size:
        raise RecipeValueError(
            f"blocks of {size} do not divide axis {axis} of '{site.tensor}', which has shape {tuple(shape)}",
            hint="correct 'weights.block_size', or override it for this layer",
        )
    return replace(site, axis=axis % len(shape), block_size=size, as_pair=False, as_product=False, kernel="")


@dataclass(frozen=True)
class FixedPointQuantizer:
    """Integers times powers of two: ``quantizers.fixed.fixed_point_integers``."""

    family: FixedPointWeights
    settings: AmaxSettings
    packed: bool
    rules: ScaleRules

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return the power of two that alpha finds, that of ``integer``, or the one that holds each amax."""
        if self.family.alpha != PLAIN:
            return WeightChoice(parameters_of(self._found(weight, site), site))
        if self.family.integer is not None:
            return WeightChoice(parameters_of(_step_of(self.family.integer, self.family.bits), site))
        ranges = weight_ranges(weight, site, self.settings)
        whole = np.vectorize(bits_before_point)(_above_zero(ranges.amax))
        return WeightChoice(parameters_of(_step_of(whole, self.family.bits), site), ranges.unsearched)

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the integers: with a found alpha halves go away from zero, as in QKeras."""
        found = _required(parameters)
        if self.family.alpha == PLAIN:
            return StoredWeight(
                integers=nearest_integers(weight, site, found), bits=storage_bits(site, self.packed)
            )
        import torch

        from ptq_cli.quantizers.automatic_scale import AutoScale
        from ptq_cli.quantizers.fixed_point import quantize_fixed_point

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

        from ptq_cli.quantizers.automatic_scale import AutoScale
        from ptq_cli.quantizers.fixed_point import FixedPointFormat, Rounding, steps_of

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
    rules: ScaleRules

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return the step that is given, or the one with which the largest integer stands for amax."""
        if self.family.step is not None:
            return WeightChoice(parameters_of(np.asarray(self.family.step, np.float32), site))
        return ScaledQuantizer(self.settings).choose(weight, site)

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return each value as a number of steps."""
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
    rules: ScaleRules

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return ``amax / (2^bits - 1)`` of each output channel."""
        ranges = weight_ranges(weight, site, self.settings)
        # There is no level at 0: a channel of zeros gets levels as near to it as nothing.
        amax = _above_zero(ranges.amax)
        scale = (amax / ((1 << self.family.bits) - 1)).astype(np.float32)
        return WeightChoice(parameters_of(np.asarray(scale), site), ranges.unsearched)

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
    rules: ScaleRules = ANY_SCALE

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:  # noqa: ARG002 - one interface
        """Return no parameters: values come out of the codebook."""
        return WeightChoice(None)

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:  # noqa: ARG002 - one interface
        """Learn the centers, and return an index for each value."""
        import torch

        from ptq_cli.quantizers.center_indices import encode_centers
        from ptq_cli.quantizers.learning import learn_centers

        values, family = torch.tensor(weight), self.family
        generator = torch.Generator().manual_seed(0)
        centers = learn_centers(values, family.centers, generator, axis=site.axis)
        found = encode_centers(values, centers, axis=site.axis)
        bits = found.bits if self.packed else BYTE
        offsets = None if site.axis is None else found.offsets().numpy()
        return StoredWeight(
            integers=found.indices.numpy(),
            bits=bits,
            table=found.codebook.reshape(-1).numpy(),
            offsets=offsets,
        )


def _above_zero(amax: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the amax of each channel; one of zeros counts as 2^-24."""
    return np.asarray(np.where(amax > ZERO_AMAX, amax, 2.0**-24))


def _step_of(integer: npt.ArrayLike, bits: int) -> FloatArray:
    step: FloatArray = np.asarray(np.ldexp(np.float32(1.0), np.asarray(integer) - bits + 1), np.float32)
    return step


def _required(parameters: QuantParameters | None) -> QuantParameters:
    if parameters is None:
        raise ValueError("a weight behind a DequantizeLinear has parameters")
    return parameters


# MatMulNBits of ONNX Runtime 1.31 gives wrong numbers for 2 bits if their number is not a multiple of it.
OUTPUTS_OF_QUARTERS = 4
_TABLE = "Gather"


def formatted_sites(
    model: ir.Model, plan: Plan, settings: TensorSettings, target: Target
) -> dict[WeightSite, WeightSite]:
    """Return the sites of a plan with the formats of their quantizers."""
    constants = model.graph.initializers
    ops = {node.name: node.op_type for node in every_node(model.graph)}
    found = {}
    for site in plan.weights:
        family, mode = settings.weight_families[site], settings.modes.get(site.node, STATIC)
        rule = block_rule(family, target, ops[site.node], mode)
        shape = constant_shape(constants[site.tensor])
        if rule is None or not isinstance(family, ScaledWeights):
            # A DequantizeLinear has scales along one axis: those of several matrices are multiplied with.
            is_batch = mode == FLOAT and ops[site.node] == "MatMul" and len(shape) > MATRIX
            own = site
            if is_batch:
                own = replace(site, axis=len(shape) - 1, as_product=True, per_direction=True)
            found[site] = weight_site(own if _is_plain(family) else site, family, shape)
        else:
            found[site] = site_in_blocks(
                site, replace(family, bits=_bits(site, family, shape, target)), rule.kernel
            )
    return found


def _is_plain(family: WeightFamily) -> bool:
    if not isinstance(family, ScaledWeights):
        return False
    return family.dtype is None and family.block_size is None and family.granularity != TENSOR


def _bits(site: WeightSite, family: ScaledWeights, shape: tuple[int, ...], target: Target) -> int:
    """Bits of a weight: those that are asked for, if the kernel computes them correctly."""
    if site.block_axis is not None:
        return table_bits(family.bits, target)
    outputs = shape[site.axis] if site.axis is not None else 1
    return 4 if family.bits <= QUARTER_BYTE and outputs % OUTPUTS_OF_QUARTERS else family.bits


def site_in_blocks(site: WeightSite, family: ScaledWeights, kernel: str) -> WeightSite:
    """Return the site of a matrix whose blocks a kernel reads, the last perhaps shorter than the others."""
    axis = site.block_axis if site.block_axis is not None else 1 - (site.axis or 0)
    return replace(
        site,
        format=IntegerFormat(family.bits, signed=family.symmetric),
        axis=axis,
        block_size=family.block_size,
        as_pair=False,
        as_product=False,
        kernel="",
        block_kernel=kernel,
    )


def as_stored(family: WeightFamily, site: WeightSite) -> WeightFamily:
    """Return a family with the bits that its integers have where a kernel reads them in blocks."""
    if site.block_kernel and isinstance(family, ScaledWeights):
        return replace(family, bits=site.format.bits)
    return family


def described_weights(
    model: ir.Model, families: Mapping[WeightSite, WeightFamily], target: Target
) -> dict[str, str]:
    """Return the quantizers of weights that are not those of the target, in words."""
    ops = {node.name: node.op_type for node in every_node(model.graph)}
    return {
        site.node: described(item)
        for site, item in families.items()
        if item != ScaledWeights(bits=target.weight_rule(ops[site.node]).bits)
    }


def oldest_opset(
    plan: Plan, families: Mapping[WeightSite, WeightFamily], target: Target, float_type: str
) -> int:
    """Return the oldest opset that a target, the integers of a plan and its scales need."""
    packs = target.weight.packed and any(family.bits <= HALF_BYTE for family in families.values())
    blocks = any(site.block_size is not None for site in families)
    formats = [site.format for site in plan.activations.values()] + [site.format for site in families]
    wide = any(item.bits > BYTE for item in formats)
    known = [FLOAT_OPSETS[item.name] for item in formats if isinstance(item, FloatFormat)]
    # Scales of float16 came with opset 19, and with 21 for TensorRT.
    newer = PACKED_OPSET if packs or blocks or wide or float_type == FLOAT16 else 0
    quarters = any(site.block_kernel and site.format.bits <= QUARTER_BYTE for site in families)
    return max(target.opset, newer, QUARTER_BYTE_OPSET if quarters else 0, *known)


def with_tables(model: ir.Model, plan: Plan, settings: TensorSettings, target: Target) -> Plan:
    """Return the plan with the tables of embeddings that are stored in blocks.

    A table that a layer has as its weight shares that layer's integers, if a Gather can read them. Where the
    layer stays float, so does the table: the file holds it once.
    """
    found = [site for site in table_sites(model, target) if _is_stored(model, site, settings, target)]
    stored = {site.node for site in (*found, *plan.weights)}
    tables = [site for site in found if not _stays_float(model.graph, site, stored)]
    if not tables:
        return plan
    tied = {name: item.site for item in tied_tables(model.graph, plan.weights) for name in item.gathers}
    own, reasons = [], {}
    for site in tables:
        family, shared = settings.weight_families[site], tied.get(site.node)
        if not isinstance(family, ScaledWeights):
            continue
        bits = table_bits(family.bits, target)
        if shared is None or settings.weight_families[shared] != replace(family, bits=bits):
            own.append(site)
            reasons[site.node] = (
                f"looks up rows of the table '{site.tensor}', stored in {bits} bits in blocks"
            )
    layers = tuple(replace(item, reason=reasons.get(item.name, item.reason)) for item in plan.layers)
    return replace(plan, weights=(*plan.weights, *own), layers=layers)


def _stays_float(graph: ir.Graph, site: WeightSite, stored: Container[str]) -> bool:
    """Whether a layer in float reads the table, as it is or transposed."""
    table = graph.initializers[site.tensor]
    turned = constant_shape(table)[::-1]
    twins = [
        value
        for value in graph.initializers.values()
        if value is not table and constant_shape(value) == turned and is_turned(table, value)
    ]
    return any((use.node.name or "") not in stored for value in (table, *twins) for use in value.uses())


def _is_stored(model: ir.Model, site: WeightSite, settings: TensorSettings, target: Target) -> bool:
    family = settings.weight_families.get(site)
    if family is None or site.node in settings.excluded or not isinstance(family, ScaledWeights):
        return False
    if block_rule(family, target, _TABLE, settings.modes.get(site.node, STATIC)) is None:
        return False
    table = model.graph.initializers[site.tensor].const_value
    return table is not None and int(table.shape.numpy()[1]) % (family.block_size or 1) == 0
