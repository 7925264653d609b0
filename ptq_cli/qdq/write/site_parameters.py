"""Decisions about every site of a plan, made once, before the graph is touched.

A decided weight and a decided bias are values: recovery takes them and returns others, and at the end they
are written into a graph.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.decide import BiasNeed, finish_tied, finish_weight
from ptq_cli.core.arithmetic import ZERO_AMAX, FloatArray, QuantParameters, dequantize
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.formats import Granularity
from ptq_cli.core.pair_sums import exceeds_pairs
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.plan.sites import ActivationSite, BiasSite, Plan, WeightSite
from ptq_cli.qdq.write.block_weights import dequantized_blocks, in_place_of_blocks
from ptq_cli.qdq.write.weight_quantizer import (
    ScaledQuantizer,
    StoredWeight,
    WeightQuantizer,
    WeightStorage,
    granularity_of,
    in_memory,
)
from ptq_cli.recipe.sections import AmaxSettings

_Decide = Callable[[ActivationSite], QuantParameters]
QuantizerOf = Callable[[WeightSite], WeightQuantizer]
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, eq=False, kw_only=True)
class DecidedWeight:
    """A weight as it is decided at one of its sites.

    Attributes:
        parameters: scale and zero point; None if no DequantizeLinear computes the values.
        widened: how many channels have a wider scale than the method chose, for the bias to fit.
        unsearched: the method had only one candidate in every channel.
    """

    parameters: QuantParameters | None
    stored: StoredWeight
    widened: int = 0
    unsearched: bool = False

    def scale(self, site: WeightSite) -> Array:
        """Return the scale as a DequantizeLinear takes it: (C,), (), or in blocks along the weight's axis."""
        found = self._required()
        return in_place_of_blocks(found.scale, self.stored.shape, site) if site.block_size else found.scale

    def zeros(self, site: WeightSite) -> Array | None:
        """Return the zero points of blocks, which have the shape of ``scale``; None where all are 0."""
        if site.block_size is None or site.format.signed:
            return None
        return in_place_of_blocks(self._required().zero_point, self.stored.shape, site)

    def on_grid(self, site: WeightSite) -> FloatArray:
        """Return the real values that the integers stand for."""
        integers, found = self.stored.values(), self._required()
        return dequantized_blocks(integers, found, site) if site.block_size else dequantize(integers, found)

    def with_integers(
        self, site: WeightSite, integers: Array, scale: Array | None, zeros: Array | None = None
    ) -> "DecidedWeight":
        """Return the weight with other integers, and with other scales and zero points if given."""
        found = self._required()
        if zeros is not None:
            points = np.ascontiguousarray(zeros).astype(np.int64).reshape(found.zero_point.shape)
            found = replace(found, zero_point=points)
        if scale is not None:
            found = replace(found, scale=np.ascontiguousarray(scale, np.float32).reshape(found.scale.shape))
        # A file that holds floats on the grid has -0.0, too.
        dtype = np.dtype(np.float32) if site.as_pair else found.format.storage
        integers = np.ascontiguousarray(integers).astype(dtype)
        return replace(self, parameters=found, stored=replace(self.stored, integers=integers))

    def _required(self) -> QuantParameters:
        if self.parameters is None:
            raise ValueError("values out of a codebook have no scale")
        return self.parameters


@dataclass(frozen=True, eq=False)
class DecidedBias:
    """A bias as int32 steps of ``s_input * s_weight`` in float32, as the integer kernels compute it.

    Shapes: integers: (C,); scale: (C,), or () where the weight has one scale.
    """

    integers: npt.NDArray[np.int32]
    scale: FloatArray

    @classmethod
    def of(cls, values: Array, scale: FloatArray) -> "DecidedBias":
        """Return the integers of real values that lie nearest.

        Shapes: values: (C,) or one element.

        Example:
            >>> DecidedBias.of(np.float32([1.0, -0.3]), np.float32(0.25)).integers.tolist()
            [4, -1]
        """
        values = np.broadcast_to(values, np.broadcast_shapes(values.shape, scale.shape))
        steps = np.rint(values.astype(np.float64) / scale.astype(np.float64))
        return cls(np.clip(steps, _INT32.min, _INT32.max).astype(np.int32), scale)

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The real values of the integers."""
        return self.integers.astype(np.float64) * self.scale.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class DecidedConstants:
    """Weights and biases as they are decided, and by name constants that stay floats, with new values."""

    decided: Mapping[WeightSite, DecidedWeight] = field(default_factory=dict)
    biases: Mapping[BiasSite, DecidedBias] = field(default_factory=dict)
    floats: Mapping[str, Array] = field(default_factory=dict)

    def changed(self, changes: "DecidedConstants") -> Self:
        """Return these with other decisions for some of them."""
        return replace(
            self,
            decided={**self.decided, **changes.decided},
            biases={**self.biases, **changes.biases},
            floats={**self.floats, **changes.floats},
        )

    def differs(self, other: "DecidedConstants", model: ir.Model) -> bool:
        """Tell whether any of these is another than in ``other``, or in the float model."""
        for site, item in self.decided.items():
            held, zeros = other.decided[site], item.zeros(site)
            if not np.array_equal(item.stored.array(), held.stored.array()):
                return True
            if not np.array_equal(item.scale(site), held.scale(site)):
                return True
            before = held.zeros(site)
            if zeros is not None and before is not None and not np.array_equal(zeros, before):
                return True
        for bias, own in self.biases.items():
            was = other.biases[bias]
            if not (np.array_equal(own.integers, was.integers) and np.array_equal(own.scale, was.scale)):
                return True
        for name, values in self.floats.items():
            with mapped(model.graph.initializers[name]) as array:
                known = other.floats.get(name, array)
                if not np.array_equal(known.reshape(-1), values):
                    return True
        return False


@dataclass(frozen=True, kw_only=True)
class Parameters(DecidedConstants):
    """Decisions about all sites; activations by tensor name."""

    activations: Mapping[str, QuantParameters]

    @property
    def weights(self) -> dict[WeightSite, QuantParameters]:
        """Scale and zero point of each weight that has them: values from a codebook have none."""
        found = self.decided.items()
        return {site: item.parameters for site, item in found if item.parameters is not None}

    @property
    def widened(self) -> dict[str, int]:
        """How many channels of a weight have a scale that was widened for their bias, by its name."""
        return {site.tensor: item.widened for site, item in self.decided.items() if item.widened}

    @property
    def unsearched(self) -> tuple[str, ...]:
        """Names of weights whose method had only one candidate in every channel."""
        return tuple(site.tensor for site, item in self.decided.items() if item.unsearched)


BY_MAX = ScaledQuantizer(AmaxSettings(weight_method="max"))


def decide_all(
    model: ir.Model,
    plan: Plan,
    decide: _Decide,
    quantizer_of: QuantizerOf = lambda _: BY_MAX,
    keep: WeightStorage = in_memory,
) -> Parameters:
    """Return the parameters of a plan's sites, and its weights, each from where ``keep`` puts it."""
    by_source: dict[str, QuantParameters] = {}
    for site in plan.activations.values():
        if site.source not in by_source:
            by_source[site.source] = decide(site)
    activations = {name: by_source[site.source] for name, site in plan.activations.items()}
    constants = model.graph.initializers
    needs: dict[WeightSite, BiasNeed] = {}
    values: dict[BiasSite, FloatArray] = {}
    for bias in plan.biases:
        # Gemm lets a bias of one element, or of shape (1, C), stand for a vector.
        with constant(constants[bias.tensor]) as array:
            require_finite(bool(np.isfinite(array).all()), bias.tensor)
            values[bias] = array.reshape(-1).copy()
        needs[bias.weight] = BiasNeed(values[bias], float(activations[bias.activation].scale))
    readers: dict[str, list[WeightSite]] = {}
    for weight_site in plan.weights:
        readers.setdefault(weight_site.tensor, []).append(weight_site)
    decided: dict[WeightSite, DecidedWeight] = {}
    for name, sites in readers.items():
        # A large weight is read from its file once: all that is asked of it is asked here.
        with constant(constants[name]) as weight:
            decided |= decide_weight(weight, {site: quantizer_of(site) for site in sites}, needs, keep)
    biases = {
        bias: DecidedBias.of(own, bias_scale(activations[bias.activation], decided[bias.weight].parameters))
        for bias, own in values.items()
    }
    found = {site: decided[site] for site in plan.weights}
    return Parameters(activations=activations, decided=found, biases=biases)


def decide_weight(
    weight: FloatArray,
    quantizers: Mapping[WeightSite, WeightQuantizer],
    biases: Mapping[WeightSite, BiasNeed],
    keep: WeightStorage,
) -> dict[WeightSite, DecidedWeight]:
    """Decide all the sites of one weight."""
    kinds = {site: granularity_of(site) for site in quantizers}
    of_kind = {kind: _largest(weight, kind) for kind in set(kinds.values())}
    largest = {site: of_kind[kind] for site, kind in kinds.items()}
    for site in quantizers:
        require_finite(bool(np.isfinite(largest[site]).all()), site.tensor)
    choices = {site: item.choose(weight, site) for site, item in quantizers.items()}
    finished, widened = {}, {}
    for site, choice in choices.items():
        if (chosen := choice.parameters) is None:
            continue
        rules, zero = quantizers[site].rules, np.asarray(largest[site] <= ZERO_AMAX)
        finished[site], widened[site] = finish_weight(
            chosen, rules, weight, zero, pairs=site.pairs, bias=biases.get(site)
        )
    _tie_scales(quantizers, finished)
    decided: dict[WeightSite, DecidedWeight] = {}
    for site, quantizer in quantizers.items():
        twin = _stored_alike(site, quantizers, finished, decided)
        made = twin or keep(_checked(quantizer.store(weight, site, finished.get(site)), site), site.tensor)
        decided[site] = DecidedWeight(
            parameters=finished.get(site),
            stored=made,
            widened=widened.get(site, 0),
            unsearched=choices[site].unsearched,
        )
    return decided


def _largest(weight: FloatArray, granularity: Granularity) -> FloatArray:
    """Return the largest magnitude of each channel, and NaN of one that holds it."""
    axes = granularity.reduced_axes(weight.shape)
    high, low = weight.max(axis=axes, initial=0.0), weight.min(axis=axes, initial=0.0)
    return np.asarray(np.maximum(high, -low), np.float32)


def _checked(stored: StoredWeight, site: WeightSite) -> StoredWeight:
    """Require that no pair of a weight exceeds what its kernels can add."""
    if site.pairs is not None and site.block_size is None and exceeds_pairs(stored.values(), site.pairs):
        raise RuntimeError(f"two neighbors in '{site.tensor}' add up to more than {site.pairs.largest}")
    return stored


def _stored_alike(
    site: WeightSite,
    quantizers: Mapping[WeightSite, WeightQuantizer],
    found: Mapping[WeightSite, QuantParameters],
    decided: Mapping[WeightSite, DecidedWeight],
) -> StoredWeight | None:
    """Return the stored form of another reader of the weight, if that is the same; or None."""
    own, shared = found.get(site), _without_reader(site)
    for other, made in decided.items():
        theirs = made.parameters
        if _without_reader(other) != shared or quantizers[other] != quantizers[site]:
            continue
        if own is None or theirs is None:
            return made.stored if own is theirs else None
        if np.array_equal(own.scale, theirs.scale) and np.array_equal(own.zero_point, theirs.zero_point):
            return made.stored
    return None


def _tie_scales(
    quantizers: Mapping[WeightSite, WeightQuantizer], weights: dict[WeightSite, QuantParameters]
) -> None:
    """Give the layers that share a weight and its quantizer the widest scale that one of them needs."""
    shared: dict[WeightSite, list[WeightSite]] = {}
    for site in weights:
        shared.setdefault(_without_reader(site), []).append(site)
    for sites in shared.values():
        for site in sites if len(sites) > 1 else ():
            alike = [weights[other] for other in sites if quantizers[other] == quantizers[site]]
            weights[site] = finish_tied(weights[site], quantizers[site].rules, alike)


def _without_reader(site: WeightSite) -> WeightSite:
    return replace(site, node="", input_index=0)


def require_finite(is_finite: bool, name: str) -> None:
    """Require that a constant holds numbers only."""
    if not is_finite:
        raise InvalidOnnxError(
            f"the constant '{name}' holds NaN or Inf, which no integer represents",
            hint="check this parameter in the trained model: the training may have diverged",
        )


@contextlib.contextmanager
def constant(value: ir.Value) -> Iterator[FloatArray]:
    """Yield a constant's values, and let go of them at the end: a large model is looked at in parts."""
    with mapped(value) as array:
        yield np.asarray(array, dtype=np.float32)


def bias_scale(activation: QuantParameters, weight: QuantParameters | None) -> FloatArray:
    """Return ``s_input * s_weight`` in float32, as integer kernels compute it: (C,), or () for one scale."""
    if weight is None:
        raise ValueError("a bias of integers stands beside a weight with a scale")
    product: FloatArray = (activation.scale * weight.scale).astype(np.float32)
    return product
