"""What the page shows beside the report: tensors, layers, and the samples that changed."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MethodRange:
    """The range that one amax method chooses for a tensor.

    Attributes:
        method: its name.
        low, high: the range's ends.
        sqnr_db: expected from the histogram; None without one.
        clipped: how many values are surely beyond the range; None without a histogram.
    """

    method: str
    low: float
    high: float
    sqnr_db: float | None = None
    clipped: int | None = None


@dataclass(frozen=True, kw_only=True)
class TensorEvidence:
    """An activation that is quantized, as the calibration saw it.

    Attributes:
        name: the tensor's.
        format: the integers, such as ``uint8``.
        low, high: the smallest and the largest value seen, and 0 if that is smaller or larger.
        values: how many were seen.
        zeros: how many of them were 0; None where only ranges were kept.
        chosen: the range that the quantized model has.
        ranges: what the amax methods choose from the same statistics.
        counts: values in equally wide bins from ``low`` to ``high``, zeros left out; empty where no histogram
            was kept.
    """

    name: str
    format: str
    low: float
    high: float
    values: int
    zeros: int | None
    chosen: MethodRange
    ranges: tuple[MethodRange, ...]
    counts: tuple[float, ...] = ()


@dataclass(frozen=True)
class LayerEvidence:
    """What the graph says of a layer.

    Attributes:
        name: the node's.
        dtype: what its output is computed as.
        shape: of its first output; None for a size that is not fixed.
        tensor: the quantized tensor that holds its output; empty where there is none.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    tensor: str = ""


@dataclass(frozen=True)
class Origin:
    """How the report can be made again.

    Attributes:
        command: what to type.
        recipe: all settings as TOML, which the command reads; empty where they are not known.
        recipe_file: where the recipe lies.
        notes: what that would not reproduce.
    """

    command: str
    recipe: str = ""
    recipe_file: str = "recipe.toml"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All of it.

    Attributes:
        origin: recipe and command.
        layers: in graph order.
        tensors: in graph order.
        notes: what is missing of the tensors, and why.
    """

    origin: Origin
    layers: tuple[LayerEvidence, ...] = ()
    tensors: tuple[TensorEvidence, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def drawn(self) -> tuple[TensorEvidence, ...]:
        """The tensors that get a card: those of which it is known what each method would choose."""
        return tuple(tensor for tensor in self.tensors if tensor.ranges)
