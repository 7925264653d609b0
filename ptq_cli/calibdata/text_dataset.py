"""Texts as samples: windows of tokens, or a text each, with all inputs that a model takes of them."""

import copy
import hashlib
import json
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Self

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, Selection
from ptq_cli.calibdata.dataset.data_files import digest_files
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.labels import as_labels
from ptq_cli.calibdata.text_rows import columns_of, kind_of, text_rows
from ptq_cli.calibdata.token_samples import (
    IGNORED,
    TextTokenizer,
    TokenSample,
    pieces_of,
    windows_of,
)
from ptq_cli.calibdata.token_samples import rows_of as token_rows_of
from ptq_cli.core.errors import CacheInputError, SequenceLengthError, TokenizerError
from ptq_cli.core.tensors import Array, TensorSpec, format_shape, is_cache, longest_of, rows_of
from ptq_cli.core.tensors import rows_of as rows_of_table
from ptq_cli.recipe.sections import TextSettings

# Samples of tokens as the arrays that a model takes: tokens, masks, positions, types, empty caches.


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
    """What arrays are made of samples.

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


class TextDataset(Dataset):
    """Text files, JSON lines or Parquet columns of text, through a tokenizer.

    The tokens of the samples are in memory, 4 bytes each; arrays are made a batch at a time. What the window
    is, and which arrays there are, is decided once the model's inputs are known. The labels of windows and
    texts are the tokens that follow, which make no ``has_labels``.
    """

    extras_allowed = True
    default_input = IDS

    def __init__(
        self, source: str, files: Sequence[str], settings: TextSettings, samples: int | None = None
    ) -> None:
        self.source = source
        self.count = None
        self.class_names = ()
        self._files, self._settings, self._most = tuple(files), settings, samples
        self._columns = columns_of(files[0], settings.columns, settings.label_column)
        self._tokenizer = TextTokenizer(str(settings.tokenizer))
        self.has_labels = self._columns.label is not None or settings.mask_share > 0
        self._layout = ArrayLayout.of(window_of(settings.window, {}), self._tokenizer.pad, {})
        self._names = tuple(self._layout.specs)
        self.specs = dict(self._layout.specs)
        self._samples: list[TokenSample] | None = None
        self._require_one_way()

    @property
    def packs(self) -> bool:
        """Whether texts are joined and cut into windows."""
        if self._settings.pack is not None:
            return self._settings.pack
        alone = len(self._columns.texts) > 1 or self.has_labels or self._tokenizer.frames
        return not alone

    def _require_one_way(self) -> None:
        reasons = {
            "a pair of texts": len(self._columns.texts) > 1,
            "the label of a text": self._columns.label is not None and self._settings.pack is True,
        }
        for what, is_so in reasons.items():
            if is_so and self.packs:
                raise SequenceLengthError(
                    f"'text.pack' joins texts, and {what} would be lost", hint="leave 'text.pack' out"
                )

    def can_make(self, name: str) -> bool:
        """Tell whether the name is that of a cache, which is empty."""
        return is_cache(name)

    def fitted(self, inputs: Mapping[str, TensorSpec]) -> "TextDataset":
        """Return the same texts in windows of the model's length, with empty caches."""
        window = window_of(self._settings.window, inputs)
        made = copy.copy(self)
        made._layout = ArrayLayout.of(window, self._tokenizer.pad, inputs)
        if made._samples is None or window != self._layout.window:
            made._samples = made._cut(window)
        made.count = len(made._samples)
        made.specs = dict(made._layout.specs)
        made._names = tuple(made.specs)
        require_tokens(made._samples, rows_of_table(inputs.get(IDS)), self._tokenizer.name)
        return made

    @property
    def remarks(self) -> tuple[str, ...]:
        """How many texts were cut."""
        cut = sum(sample.is_cut for sample in self._samples or ())
        whole = f"{len(self._samples or ()):,} texts"
        longer = "is" if cut == 1 else "are"
        note = f"{cut:,} of {whole} {longer} longer than {self._layout.window} tokens, and cut to them"
        return (note,) if cut else ()

    def only(self, names: Collection[str]) -> Self:
        """Return the same texts; other arrays are not made."""
        narrowed = copy.copy(self)
        narrowed._names = tuple(name for name in self._names if name in names)
        narrowed.specs = {name: self._layout.specs[name] for name in narrowed._names}
        return narrowed

    def digest(self) -> str:
        """SHA-256 of the files, of the tokenizer, and of how texts become samples."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        settings = {key: value for key, value in asdict(self._settings).items() if key != "tokenizer"}
        digest = hashlib.sha256(digest_files(self._files).encode())
        digest.update(hashlib.sha256(self._tokenizer.content).digest())
        digest.update(json.dumps({**settings, "window": self._layout.window}, sort_keys=True).encode())
        return digest.hexdigest()

    def _cut(self, window: int) -> list[TokenSample]:
        settings, rows = self._settings, text_rows(self._files, self._columns, keep_blank=self.packs)
        if self.packs:
            stride = settings.stride or window
            if stride > window:
                raise SequenceLengthError(
                    f"'text.stride' is {stride}, longer than the window of {window} tokens",
                    hint=f"pass --set text.stride={window} or shorter",
                )
            joint = "\n" if kind_of(self._files[0]) == "lines" else "\n\n"
            return windows_of(
                self._tokenizer.stream(pieces_of(rows, joint)),
                self.source,
                length=window,
                stride=stride,
                pad=settings.tail == "pad",
                most=self._most,
            )
        return token_rows_of(
            rows,
            self._tokenizer,
            self.source,
            longest=window,
            apart=settings.pairs == "apart",
            masked=settings.mask_share,
            most=self._most,
        )

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        samples = self._samples
        if samples is None:  # no model has been asked
            samples = self._cut(self._layout.window)
            self._samples = samples
        for number, start in enumerate(range(0, len(samples), batch_size)):
            if number in selection:
                some = samples[start : start + batch_size]
                yield Batch(
                    self._layout.arrays(some, self._names), self._labels(some), tuple(s.name for s in some)
                )

    def _labels(self, samples: Sequence[TokenSample]) -> Array:
        if self._columns.label is None or self._settings.mask_share:
            return self._layout.targets(samples)
        where = f"column '{self._columns.label}' of '{self.source}'"
        return as_labels(np.array([sample.label for sample in samples]), len(samples), where)
