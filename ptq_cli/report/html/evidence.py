"""What the page shows in addition to the report: tensors, layers, and how to make the report again."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MethodRange:
    """The range that one amax method chooses for a tensor."""

    method: str
    low: float
    high: float
    sqnr_db: float | None = None  # the SQNR that the histogram leads to expect; None without a histogram
    clipped: int | None = None  # how many values are certainly beyond the range; None without a histogram


@dataclass(frozen=True, kw_only=True)
class TensorEvidence:
    """An activation that is quantized, as the calibration saw it.

    Attributes:
        low, high: the smallest and the largest value seen; 0 counts as seen.
        zeros: how many of them were 0; None if only ranges were kept.
        ranges: the ranges that the amax methods choose from the same statistics.
        counts: values in equally wide bins from ``low`` to ``high``, without zeros; empty if no histogram was
            kept.
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


@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """What the graph says about a layer.

    Attributes:
        dtype: the type that its output is computed in.
        tensor: the quantized tensor that holds its output; empty if there is none.
        multiply_accumulates: of one sample, with sizes that the model leaves open assumed; None if that is
            not known.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    tensor: str = ""
    multiply_accumulates: int | None = None


@dataclass(frozen=True)
class Origin:
    """How the report can be made again."""

    command: str
    recipe: str = ""
    recipe_file: str = "recipe.toml"
    notes: tuple[str, ...] = ()  # what the command would not reproduce


@dataclass(frozen=True)
class Evidence:
    """All that the page shows in addition to the report."""

    origin: Origin
    layers: tuple[LayerEvidence, ...] = ()
    tensors: tuple[TensorEvidence, ...] = ()
    notes: tuple[str, ...] = ()  # what is missing about the tensors, and why

    @property
    def drawn(self) -> tuple[TensorEvidence, ...]:
        """The tensors that get a card: those for which the range of each method is known."""
        return tuple(tensor for tensor in self.tensors if tensor.ranges)
