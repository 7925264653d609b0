"""Samples of tokens as the arrays that a model takes: tokens, masks, positions, types, empty caches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.calibdata.text.token_samples import IGNORED, TokenSample
from ptq_cli.core.errors import CacheInputError, SequenceLengthError, TokenizerError
from ptq_cli.core.tensors import Array, TensorSpec, format_shape, is_cache, longest_of, rows_of

IDS, MASK, POSITIONS, TYPES = "input_ids", "attention_mask", "position_ids", "token_type_ids"
NAMES = (IDS, MASK, POSITIONS, TYPES)
DEFAULT_WINDOW = 128
_INT64: np.dtype[np.generic] = np.dtype(np.int64)


def empty_cache(spec: TensorSpec) -> TensorSpec:
    """Return the input of a cache with the length that an empty one has.

    A cache of fixed length has that many positions, which are zeros, and which the mask leaves out.

    Example:
        >>> str(empty_cache(TensorSpec("past.0.key", np.dtype("f4"), (None, 3, None, 64))))
        'past.0.key: float32[?, 3, 0, 64]'
    """
    # Axis 0 is the batch; of the others only the length of the cache may be open.
    free = [axis for axis, size in enumerate(spec.shape) if size is None and axis != 0]
    if len(spec.shape) < 3 or len(free) > 1:
        raise CacheInputError(
            f"the cache input '{spec.name}' has the shape {format_shape(spec.shape)}, which does not say how "
            "many heads and features an empty cache has",
            hint="export the model with fixed sizes, such as [batch, 9, past_length, 64], or without a cache",
        )
    shape = tuple(0 if axis in free else size for axis, size in enumerate(spec.shape))
    return TensorSpec(spec.name, spec.dtype, (None, *shape[1:]), 0)


def window_of(wanted: int | None, inputs: Mapping[str, TensorSpec]) -> int:
    """Return the tokens of a sample: those that were asked for, or that the model's shapes say, or 128.

    Example:
        >>> window_of(None, {"input_ids": TensorSpec("ids", np.dtype("i8"), (None, 64))})
        64
    """
    fixed = [inputs[name].shape[1] for name in NAMES if name in inputs and len(inputs[name].shape) == 2]
    # A mask over a cache of fixed length is longer than the window: it does not tell the window.
    if MASK in inputs and inputs[MASK].shape[1:] and fixed and _cached(inputs):
        fixed = [inputs[IDS].shape[1]] if IDS in inputs else []
    sizes = [size for size in fixed if size is not None]
    if sizes and wanted not in (None, sizes[0]):
        raise SequenceLengthError(
            f"'text.window' is {wanted} tokens, but the model takes sequences of {sizes[0]}",
            hint=f"leave 'text.window' out, or pass --set text.window={sizes[0]}",
        )
    limits = (rows_of(inputs.get(POSITIONS)), longest_of(inputs.get(IDS)))
    most = min((limit for limit in limits if limit is not None), default=None)
    if most is not None and wanted is not None and wanted > most:
        raise SequenceLengthError(
            f"'text.window' is {wanted} tokens, but the model has positions for {most}",
            hint=f"pass --set text.window={most} or shorter",
        )
    return sizes[0] if sizes else wanted or min(DEFAULT_WINDOW, most or DEFAULT_WINDOW)


def _cached(inputs: Mapping[str, TensorSpec]) -> int:
    """Return the fixed length of the caches; 0 if they may be empty, or there are none."""
    lengths = [empty_cache(spec).shape[2] or 0 for name, spec in inputs.items() if is_cache(name)]
    return max(lengths, default=0)


def require_tokens(samples: Iterable[TokenSample], rows: int | None, tokenizer: str) -> None:
    """Refuse tokens that the embedding does not have."""
    if rows is None:
        return
    for sample in samples:
        largest = int(sample.ids.max(initial=0))
        if largest >= rows:
            raise TokenizerError(
                f"'{tokenizer}' does not fit the model: {sample.name} has the token {largest:,}, "
                f"and the embedding has {rows:,} rows",
                hint="pass the tokenizer.json that belongs to this model",
            )


@dataclass(frozen=True, kw_only=True)
class ArrayLayout:
    """Names, types and shapes of the arrays of some samples.

    Attributes:
        cached: positions of a cache of fixed length.
    """

    window: int
    pad: int
    specs: Mapping[str, TensorSpec]
    cached: int = 0

    @classmethod
    def of(cls, window: int, pad: int, inputs: Mapping[str, TensorSpec]) -> "ArrayLayout":
        """Return the layout of a model's inputs; of those that tokens can fill if there is no model yet."""
        cached = _cached(inputs)
        specs = {
            name: TensorSpec(name, inputs[name].dtype if name in inputs else _INT64, (None, window))
            for name in NAMES
        }
        if cached:
            specs[MASK] = TensorSpec(MASK, specs[MASK].dtype, (None, cached + window))
        caches = {name: empty_cache(spec) for name, spec in inputs.items() if is_cache(name)}
        return cls(window=window, pad=pad, specs={**specs, **caches}, cached=cached)

    def arrays(self, samples: Sequence[TokenSample], wanted: Iterable[str]) -> dict[str, Array]:
        """Return the wanted arrays of some samples.

        Shapes:
            those of ``specs``, with the samples first.
        """
        return {name: self._array(name, samples).astype(self.specs[name].dtype) for name in wanted}

    def targets(self, samples: Sequence[TokenSample]) -> Array:
        """Return the token that each position should give, [N, window]; -100 where none counts."""
        return self._filled([sample.targets for sample in samples], IGNORED)

    def _array(self, name: str, samples: Sequence[TokenSample]) -> Array:
        count = len(samples)
        if name == IDS:
            return self._filled([sample.ids for sample in samples], self.pad)
        if name == TYPES:
            return self._filled([sample.types for sample in samples], 0)
        if name == POSITIONS:
            return np.broadcast_to(np.arange(self.window), (count, self.window))
        if name == MASK:
            ones = self._filled([np.ones(len(sample.ids), np.int64) for sample in samples], 0)
            return np.concatenate([np.zeros((count, self.cached), np.int64), ones], axis=1)
        return np.zeros(tuple(count if size is None else size for size in self.specs[name].shape), np.float32)

    def _filled(self, rows: Sequence[Array], value: int) -> Array:
        found = np.full((len(rows), self.window), value, np.int64)
        for place, row in zip(found, rows, strict=True):
            place[: len(row)] = row
        return found
