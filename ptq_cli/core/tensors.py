"""The name, dtype and shape of a model's inputs, and which of them hold a key-value cache, by their names."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype and shape of a model's input or output."""

    name: Annotated[str, "The value's name in the graph."]
    dtype: Annotated[np.dtype[np.generic], str, "Its type, as numpy calls it."]
    shape: Annotated[tuple[int | None, ...], "One entry per axis; None where any size is allowed."]
    batch_axis: Annotated[
        int | None, "The axis of the samples; None if the whole tensor belongs to a batch."
    ] = 0

    @property
    def samples_axis(self) -> int | None:
        """The axis of the samples, counted from 0; None for a scalar, which has none.

        Example:
            >>> TensorSpec("x", np.dtype("f4"), (2, None), -1).samples_axis
            1
            >>> TensorSpec("sr", np.dtype("i8"), ()).samples_axis
        """
        if not self.shape or self.batch_axis is None:
            return None
        return self.batch_axis % len(self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{format_shape(self.shape)}"


@dataclass(frozen=True)
class IndexSpec(TensorSpec):
    """An input whose values are indices of the rows of a table, such as an embedding.

    Attributes:
        rows: how many there are; every value must be less.
        longest: most values of a sequence, if the model has a table of their positions.
    """

    rows: Annotated[int, None] = 0  # None: not in a document
    longest: Annotated[int | None, None] = None


def rows_of(spec: TensorSpec | None) -> int | None:
    """How many rows the table has that an input's values are indices of; None if there is none."""
    return spec.rows if isinstance(spec, IndexSpec) else None


def longest_of(spec: TensorSpec | None) -> int | None:
    """How many values of a sequence a model has positions for; None if it does not say."""
    return spec.longest if isinstance(spec, IndexSpec) else None


def sizes_of(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], samples: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of inputs with another number of samples.

    Example:
        >>> sizes_of([TensorSpec("x", np.dtype("f4"), (2, None), 1)], {"x": (2, 8)}, 1)
        {'x': (2, 1)}
    """
    axes = {spec.name: spec.samples_axis for spec in specs}
    return {
        name: tuple(samples if index == axes.get(name, 0) else size for index, size in enumerate(shape))
        for name, shape in shapes.items()
    }


def is_array(output: object) -> bool:
    """Whether a model's output is an array, and not a sequence of arrays, which ONNX allows too.

    Example:
        >>> is_array(np.zeros(2)), is_array([np.zeros(2)])
        (True, False)
    """
    return isinstance(output, np.ndarray)


def format_shape(shape: tuple[int | None, ...]) -> str:
    """Write a shape for a message: ``[?, 3, 32, 32]``."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


# Inputs of exported decoders that say how a cache is used, and hold none.
BESIDE_CACHES = ("use_cache_branch", "cache_position")
_CACHE = re.compile(r"past_|.*past_key|.*past_value|.*cache", re.IGNORECASE)
_OF_ENCODER = re.compile(r".*encoder|.*cross", re.IGNORECASE)


def is_cache(name: str) -> bool:
    """Tell from its name whether an input holds a key-value cache.

    Example:
        >>> is_cache("past_key_values.0.key"), is_cache("cache_v_3"), is_cache("use_cache_branch")
        (True, True, False)
    """
    return name not in BESIDE_CACHES and _CACHE.match(name) is not None


def starts_empty(name: str) -> bool:
    """Tell from its name whether an input is a cache that is empty before the first token.

    Keys and values of an encoder are not: they are computed once, for all of its tokens.

    Example:
        >>> starts_empty("past_key_values.0.decoder.key"), starts_empty("past_key_values.0.encoder.key")
        (True, False)
    """
    return is_cache(name) and _OF_ENCODER.match(name.replace("decoder", "")) is None
