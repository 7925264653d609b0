"""The content of a plan: sites, and layers with their reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ptq_cli.core.arithmetic import FixedGrid
from ptq_cli.core.formats import NumberFormat
from ptq_cli.core.pair_sums import PairRule


@dataclass(frozen=True, kw_only=True)
class ActivationSite:
    """A tensor that gets a QuantizeLinear and a DequantizeLinear.

    Attributes:
        source: the tensor whose statistics decide the parameters: itself, or the one it shares them with.
            For tensors that a target ties it is the first one; then the union of their statistics decides.
        symmetric: the zero point is in the middle of the format.
        fixed: by format, the scale and zero point that the target's kernel has, whatever the statistics.
    """

    tensor: str
    source: str
    format: NumberFormat
    symmetric: bool
    fixed: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def fixed_grid(self) -> FixedGrid | None:
        """Scale and zero point that are fixed for the site's format; None if statistics decide."""
        found = self.fixed.get(self.format.name)
        return FixedGrid(found[0], int(found[1])) if found else None


@dataclass(frozen=True, kw_only=True)
class WeightSite:
    """A constant that is stored as integers.

    Attributes:
        tensor, node, input_index: the initializer, and who reads it as which input.
        axis: axis of the output channels, or None for one scale.
        as_pair: it stays a float constant with values on the grid, behind a QuantizeLinear and a
            DequantizeLinear.
        block_size: how many values along the axis share a scale, or None without blocks.
        as_product: a Cast and a Mul by the scale make the floats, in place of a DequantizeLinear.
        kernel: the operator on integers that takes the place of the node and reads them as they are; empty
            if the node reads floats.
        per_direction: each index of axis 0, a direction or a matrix, has scales of its own along ``axis``.
        block_axis: axis that blocks divide if nothing else is asked for; None if it follows from ``axis``.
        block_kernel: the runtime's kernel that reads the blocks; empty if there is none.
        dynamic: what shares a scale of the activations that the node multiplies it with, if these become
            integers at each run: ``"row"`` or ``"tensor"``; empty otherwise.
        preserves_sums: its integers are chosen so that the errors of each filter and channel add up to 0.
        pairs: what two neighbors along K may add up to for every kernel to be exact; None if no kernel adds
            products of two in 16 bits. It follows from the plan, and is not part of what a site is.
    """

    tensor: str
    node: str
    input_index: int
    format: NumberFormat
    axis: int | None
    as_pair: bool = False
    block_size: int | None = None
    as_product: bool = False
    kernel: str = ""
    per_direction: bool = False
    block_axis: int | None = None
    block_kernel: str = ""
    dynamic: str = ""
    preserves_sums: bool = False
    pairs: PairRule | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class BiasSite:
    """A bias that is stored as int32 with scale ``s_input * s_weight``.

    The node that reads it is the operator itself, or the Add after a MatMul; ``activation`` is the input.
    """

    tensor: str
    node: str
    input_index: int
    activation: str
    weight: WeightSite


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """One node of the graph or of a nested one, as the user sees it.

    Attributes:
        reason: why it is float, or what happens to it instead; empty for a quantized compute operator.
        parameters: number of elements of the float constants that it reads.
        weight: how its weight is stored; empty for the target's default integers, or if it has no weight.
        written_as: an equivalent operator that replaces it in the quantized model if it stays float, which
            may be one of the runtime's own, or the integer form that it gets if it is quantized.
        between_pairs: its inputs and outputs are quantized, but it computes in float.
        dynamic: it computes in integers, with ranges found at each run, and reads and returns floats.
    """

    name: str
    op: str
    quantized: bool
    reason: str
    parameters: int
    weight: str = ""
    written_as: str = ""
    between_pairs: bool = False
    dynamic: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is quantized, in graph order, and the reasons for everything that is not.

    Attributes:
        activations: sites by tensor name.
        layers: every node, those of nested graphs behind the node that they are nested in.
        unions: by source, the tensors whose statistics decide together, if there are several.
        trapped: of a plan by the target alone: tensors that would win nothing in integers, with the reason.
    """

    target: str
    activations: Mapping[str, ActivationSite]
    weights: tuple[WeightSite, ...]
    biases: tuple[BiasSite, ...]
    layers: tuple[LayerPlan, ...]
    unions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trapped: Mapping[str, str] = field(default_factory=dict)

    def with_weights(self, sites: Mapping[WeightSite, WeightSite], described: Mapping[str, str]) -> "Plan":
        """Return the plan with changed sites of its weights."""
        return replace(
            self,
            weights=tuple(sites[site] for site in self.weights),
            biases=tuple(replace(bias, weight=sites[bias.weight]) for bias in self.biases),
            layers=tuple(replace(layer, weight=described.get(layer.name, "")) for layer in self.layers),
        )

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors that get their own parameters, in graph order, each once."""
        return tuple(dict.fromkeys(site.source for site in self.activations.values()))

    @property
    def measured(self) -> tuple[str, ...]:
        """The tensors whose statistics are needed, in graph order, each once."""
        needed = {name for source in self.sources for name in self.members(source)}
        return tuple(name for name in self.activations if name in needed)

    def members(self, source: str) -> tuple[str, ...]:
        """Return the tensors whose statistics decide a source's parameters: itself, or all tied tensors."""
        return self.unions.get(source, (source,))

    @property
    def constants(self) -> tuple[str, ...]:
        """The initializers that are stored as integers, each once."""
        names = [site.tensor for site in self.weights] + [site.tensor for site in self.biases]
        return tuple(dict.fromkeys(names))
