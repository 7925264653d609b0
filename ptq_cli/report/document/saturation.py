"""Which layers of a quantized file can saturate on x86 processors without VNNI."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ptq_cli.core.documents.json_values import AtLeast

if TYPE_CHECKING:
    from ptq_cli.qdq.proof.portable_sums import LayerSums

Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, kw_only=True)
class SaturatingLayer:
    """A layer with weights that are too large together for a kernel that adds two products in 16 bits.

    Attributes:
        name: of its node.
        op: its operator.
        pairs: how many pairs of neighboring weights are too large.
        of_pairs: how many pairs there are.
        channels: how many output channels have such a pair.
        of_channels: how many output channels there are.
    """

    name: str
    op: str
    pairs: Count
    of_pairs: Count
    channels: Count
    of_channels: Count


@dataclass(frozen=True)
class Saturation:
    """What kernels that add two products in 16 bits make of a file.

    Attributes:
        layers: how many layers have an integer kernel and constant weights.
        saturating: those whose sums can saturate, in the order of the graph.
        exact: why the kernel of a layer is exact whatever its weights are, by the layer's name.

    Example:
        >>> Saturation(layers=26).text
        '0 of 26 layers can saturate on x86 without VNNI'
    """

    layers: Count
    saturating: tuple[SaturatingLayer, ...] = ()
    exact: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sums: "Iterable[LayerSums]") -> "Saturation":
        """Return what was found of each layer, put together."""
        found = list(sums)
        saturating = tuple(
            SaturatingLayer(
                name=item.name,
                op=item.op,
                pairs=item.unsafe.pairs,
                of_pairs=item.unsafe.of_pairs,
                channels=item.unsafe.channels,
                of_channels=item.unsafe.of_channels,
            )
            for item in found
            if item.unsafe.pairs
        )
        return cls(len(found), saturating, {item.name: item.exact for item in found if item.exact})

    @property
    def text(self) -> str:
        """How many layers can saturate, with the one that has most pairs that are too large."""
        layers = f"{self.layers:,} {'layer' if self.layers == 1 else 'layers'}"
        said = f"{len(self.saturating):,} of {layers} can saturate on x86 without VNNI"
        if not self.saturating:
            return said
        worst = max(self.saturating, key=lambda layer: layer.pairs)
        return (
            f"{said} ({worst.name}: {worst.pairs:,} of {worst.of_pairs:,} pairs, "
            f"{worst.channels:,} of {worst.of_channels:,} channels)"
        )


NOTHING = Saturation(0)
"""Of a file without such layers."""
