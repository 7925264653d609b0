"""Quantizers of weights: their protocol, the integers they store, and those that preserve a filter's sums.

What a Conv reads is seldom 0 on average: behind a Relu it never is. The part of its input that is constant
over a filter, or over all channels, is multiplied with the sum of the weights, and so with the sum of their
errors, which for the nearest integers is that of many small numbers. Rounding a few weights, those nearest to
the middle between two integers, the other way makes it smaller than half a step, at hardly any cost for the
rest of the input.

Source:
    Guo et al., "SQuant: On-the-Fly Data-Free Quantization via Diagonal Hessian Approximation", ICLR 2022,
    algorithms 2 and 3.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.decide import ANY_SCALE, ScaleRules
from ptq_cli.amax.weight_ranges import WeightRanges, choose_weight_ranges
from ptq_cli.core.arithmetic import FloatArray, QuantParameters, quantize, scale_from_amax
from ptq_cli.core.compiled import compiled
from ptq_cli.core.formats import BYTE, Granularity, IntegerFormat, PerAxes, PerAxis, PerTensor
from ptq_cli.core.pair_sums import PairRule, mates_along, within_pairs
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import ConstantsFile, named_alike, release_tensor
from ptq_cli.models.files.storing import lies_apart
from ptq_cli.models.graph_reading import register_constant, short_name
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.new_nodes import NewNodes
from ptq_cli.recipe.sections import AmaxSettings

_Float64s = npt.NDArray[np.float64]
_SPATIAL = 2  # the first axis of a Conv's weight that is one of its filter
_HALF = 0.5  # steps
COUNTED = 1.5  # steps; a larger error is that of a value that the range cuts off: nothing makes up for it


def preserve_sums(
    integers: Array, weight: FloatArray, parameters: QuantParameters, axis: int, rule: PairRule | None
) -> Array:
    """Return integers of which some are one further from the weight, so that their errors add up to about 0.

    Of the nearest ``integers``, with a zero point of 0, along the ``axis`` of output channels; the ``rule``
    limits what two of them add up to.

    Shapes: weight, in real units: (M, C, …) or (C, M, …), with at least one spatial axis; integers: the same.
    Edge case: A channel whose errors add up to less than half a step stays as it is.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW, PerAxis
        >>> one = QuantParameters(np.ones(1, np.float32), np.zeros(1, np.int64), INT8_NARROW, PerAxis(0))
        >>> weight = np.float32([[[1.4, 2.3, -3.7, 0.2]]])
        >>> preserve_sums(np.rint(weight).astype(np.int8), weight, one, 0, None).tolist()
        [[[2, 2, -4, 0]]]
    """
    channels = weight.shape[axis]
    steps = weight / parameters.scale.reshape(parameters.granularity.broadcast_shape(weight.shape))
    exact = np.moveaxis(steps, axis, 0).reshape(channels, -1).astype(np.float64)
    moved = np.moveaxis(integers, axis, 0)
    codes = moved.reshape(channels, -1).astype(np.float64)
    shape = [1 if index == axis else size for index, size in enumerate(weight.shape)]
    mates = np.empty((codes.shape[1], 0), np.int64) if rule is None else mates_along(rule, shape)
    ends = np.array([parameters.integers.qmin, parameters.integers.qmax, rule.largest if rule else np.inf])
    filter_size = int(np.prod(weight.shape[_SPATIAL:]))
    if filter_size > 1:
        make_up(exact, codes, filter_size, ends, mates)
    make_up(exact, codes, codes.shape[1], ends, mates)
    return np.ascontiguousarray(np.moveaxis(codes.reshape(moved.shape), 0, axis)).astype(integers.dtype)


@compiled
def make_up(
    exact: _Float64s, codes: _Float64s, size: int, ends: _Float64s, mates: npt.NDArray[np.int64]
) -> None:  # pragma: no cover - compiled
    """Round values of each group the other way, until their errors add up to less than half a step.

    Shapes: exact, codes: (channels, K), each K in groups of ``size``; mates: (K, any), -1 for none; ends: the
        lowest and the highest integer, and what two mates of one sign may add up to.
    """
    for channel in range(codes.shape[0]):
        for first in range(0, codes.shape[1], size):
            total = 0.0
            for i in range(first, first + size):
                error = exact[channel, i] - codes[channel, i]
                if abs(error) <= COUNTED:
                    total += error
            step = 1.0 if total > 0.0 else -1.0
            for _ in range(int(np.rint(abs(total)))):
                best, chosen = 0.0, -1
                for i in range(first, first + size):
                    # How far the weight lies on the side that it would be rounded to.
                    gain = step * (exact[channel, i] - codes[channel, i])
                    if gain <= best or gain > _HALF:
                        continue
                    code = codes[channel, i] + step
                    fits = ends[0] <= code <= ends[1]
                    for m in mates[i]:
                        other = codes[channel, m] if m >= 0 else 0.0
                        fits = fits and (other * code <= 0.0 or abs(other + code) <= ends[2])
                    if fits:
                        best, chosen = gain, i
                if chosen < 0:
                    break
                codes[channel, chosen] += step


HALF_BYTE, QUARTER_BYTE = 4, 2


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

    Shapes: integers: the weight's; table: (n,); offsets broadcast to the weight.
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


PACKED_OPSET = 21  # the first in which Cast reads INT4 and UINT4
_PART = 1 << 20  # integers that are packed at once: whole bytes of them


def add_integers(graph: ir.Graph, name: str, array: Array, bits: int) -> ir.Value:
    """Add a constant of integers of so many bits: two or four in a byte where these are few."""
    array = np.asarray(array, order="C")
    tensor = ir.Tensor(array, name=name)
    if bits <= HALF_BYTE:
        dtype = _packed_type(array, bits)
        tensor = ir.Tensor(array.astype(dtype.numpy()), dtype=dtype, name=name)
    return register_constant(graph, tensor)


def _packed_type(array: Array, bits: int) -> ir.DataType:
    signed = np.issubdtype(array.dtype, np.signedinteger)
    return ir.DataType[f"{'INT' if signed else 'UINT'}{bits}"]


def add_weight(
    new: NewNodes,
    reader: ir.Node,
    tensor: str,
    stored: StoredWeight,
    *,
    as_int8: bool = True,
    home: ir.Graph | None = None,
) -> ir.Value:
    """Add a weight's integers in front of ``reader``; return the value that a DequantizeLinear takes.

    With ``as_int8`` packed ones are cast to int8; ``home`` is the graph that holds them, if that is a nested
    one. Of a table of floats it returns the weight's values. A runtime folds what is added as it loads.
    """
    prefix, shape = short_name(tensor), ir.Shape(stored.shape)

    def put(op_type: str, inputs: list[ir.Value], dtype: ir.DataType | None, to: int = 0) -> ir.Value:
        given = {"attributes": {"to": to} if to else {}, "dtype": dtype, "shape": shape}
        return new.put(reader, op_type, inputs, f"{prefix}/{op_type}", **given)

    name = new.claim(f"{prefix}.{'quantized' if stored.table is None else 'indices'}")
    if isinstance(stored.integers, ir.ExternalTensor):
        integers = register_constant(home or new.graph, named_alike(stored.integers, name))
    else:
        integers = add_integers(home or new.graph, name, stored.integers, stored.bits)
    if stored.table is None:
        if stored.bits > HALF_BYTE or not as_int8:
            return integers
        # Integer kernels are for int8. The runtime casts once, as it loads, and finds one.
        return put("Cast", [integers], ir.DataType.INT8, ir.DataType.INT8)
    positions = put("Cast", [integers], ir.DataType.INT32, ir.DataType.INT32)
    if stored.offsets is not None:
        offsets = new.constant(f"{prefix}.offsets", stored.offsets.astype(np.int32))
        positions = put("Add", [positions, offsets], ir.DataType.INT32)
    table = new.constant(f"{prefix}.table", stored.table)
    return put("Gather", [table, positions], table.dtype)


# Given what is stored of a weight and the weight's name, returns the same from where it is kept.
WeightStorage = Callable[[StoredWeight, str], StoredWeight]


def in_memory(stored: StoredWeight, _name: str) -> StoredWeight:
    """Return a weight itself, which stays in memory."""
    return stored


class StreamedWeights:
    """Writes large integers into the file that the quantized model will have them in, as each is decided.

    A weight whose integers are stored in another form, as 4-bit floats are, stays in memory.
    """

    def __init__(self, file: ConstantsFile) -> None:
        self._file = file

    def __call__(self, stored: StoredWeight, name: str) -> StoredWeight:
        """Return a weight whose integers are in the file, if they are large."""
        array = stored.integers
        if isinstance(array, ir.ExternalTensor) or stored.tensor_scale is not None:
            return stored
        if not lies_apart(array.size * stored.bits // BYTE):
            return stored
        is_packed = stored.bits <= HALF_BYTE
        dtype = _packed_type(array, stored.bits) if is_packed else ir.DataType.from_numpy(array.dtype)
        written = self._file.write(_blocks(array, dtype, is_packed), dtype, array.shape, name)
        return replace(stored, integers=written)


def _blocks(array: Array, dtype: ir.DataType, is_packed: bool) -> Iterator[bytes | memoryview]:
    flat = np.ascontiguousarray(array).reshape(-1)
    if not is_packed:
        yield flat.view(np.uint8).data
        return
    for start in range(0, flat.size, _PART):
        yield ir.Tensor(flat[start : start + _PART].astype(dtype.numpy()), dtype=dtype).tobytes()
