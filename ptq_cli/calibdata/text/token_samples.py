"""Texts as tokens, tokens cut into samples of one length, and the arrays that a model takes of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.text.text_rows import TextRow
from ptq_cli.core.errors import (
    CacheInputError,
    EmptyDataError,
    SequenceLengthError,
    TokenizerError,
    first_line,
)
from ptq_cli.core.read_files import require_file
from ptq_cli.core.tensors import Array, TensorSpec, format_shape, is_cache, longest_of, rows_of

_Ids = npt.NDArray[np.int64]
FILE = "tokenizer.json"
_MOST_BYTES = 1 << 28
_PADS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>")
_MASKS = ("[MASK]", "<mask>")


@dataclass(frozen=True)
class Encoded:
    """The tokens of one text or pair.

    Attributes:
        types: 0 for the first text, 1 for the second.
        is_cut: whether the text was longer than allowed.
    """

    ids: _Ids
    types: _Ids
    special: npt.NDArray[np.bool_]
    is_cut: bool = False


class TextTokenizer:
    """A tokenizer of the ``tokenizers`` library.

    It is read from a ``tokenizer.json``, or a folder that holds one.
    """

    def __init__(self, path: str) -> None:
        file = Path(path)
        file = require_file(file / FILE if file.is_dir() else file, "tokenizer")
        if file.stat().st_size > _MOST_BYTES:
            raise TokenizerError(f"tokenizer '{path}' is larger than 256 MiB", hint=_HINT)
        self.content = file.read_bytes()
        self._tokenizer = _parsed(self.content, path)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.name = file.name

    @property
    def pad(self) -> int:
        """The token that fills a sequence up; 0 if the tokenizer has none, since it is masked."""
        return next((found for found in map(self._tokenizer.token_to_id, _PADS) if found is not None), 0)

    @property
    def mask(self) -> int | None:
        """The token that stands for a hidden one, or None."""
        return next((found for found in map(self._tokenizer.token_to_id, _MASKS) if found is not None), None)

    @property
    def frames(self) -> bool:
        """Whether it adds tokens at both ends of a text, as those of encoders do."""
        return bool(self._tokenizer.num_special_tokens_to_add(False) >= 2)

    def encode(self, texts: Sequence[str], longest: int) -> Encoded:
        """Return the tokens of a text or a pair, with the special tokens, cut to ``longest``."""
        self._tokenizer.enable_truncation(longest)
        found = self._tokenizer.encode(*texts)
        self._tokenizer.no_truncation()
        return Encoded(
            ids=np.array(found.ids, np.int64),
            types=np.array(found.type_ids, np.int64),
            special=np.array(found.special_tokens_mask, np.bool_),
            is_cut=bool(found.overflowing),
        )

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(list(tokens)))

    def stream(self, pieces: Iterator[str]) -> Iterator[_Ids]:
        """Yield the tokens of pieces of a text, without special tokens."""
        for piece in pieces:
            yield np.array(self._tokenizer.encode(piece, add_special_tokens=False).ids, np.int64)


_HINT = "pass the tokenizer.json of the model; the tokenizers library writes it, as does save_pretrained"


def _parsed(content: bytes, path: str) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(content.decode("utf-8-sig"))
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(f"'{path}' is not a tokenizer: {first_line(error)[:120]}", hint=_HINT) from error


_IGNORED = -100  # label of a position that does not count
MOST_TOKENS = 1 << 26  # in memory: 256 MiB
_PIECE = 1 << 16  # characters tokenized at a time, up to the end of their line


@dataclass(frozen=True, kw_only=True)
class TokenSample:
    """One sequence, not yet filled up to the length of the others.

    Attributes:
        targets: the token that each position should give, or -100.
    """

    ids: npt.NDArray[np.int32]
    types: npt.NDArray[np.int8]
    targets: npt.NDArray[np.int32]
    label: float | int | None
    name: str
    is_cut: bool = False


def pieces_of(rows: Iterable[TextRow], joint: str) -> Iterator[str]:
    """Yield texts joined into pieces of about 64 KiB, each of which ends where a text does."""
    held: list[str] = []
    size = 0
    for row in rows:
        held.append(row.texts[0] + joint)
        size += len(held[-1])
        if size >= _PIECE:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def windows_of(
    stream: Iterable[_Ids], source: str, *, length: int, stride: int, pad: bool, most: int | None
) -> list[TokenSample]:
    """Return the windows of a stream of tokens; each token is the target of one window alone.

    With ``pad``, the rest of the stream is a window, too.
    """
    enough = None if most is None else (most - 1) * stride + length
    tokens = _collected(stream, enough, source)
    if not len(tokens):
        raise EmptyDataError(f"data '{source}' holds no text", hint="pass a file with text")
    last = len(tokens) if pad else len(tokens) - length + 1
    starts = list(range(0, max(last, 0), stride))
    if pad:
        # A window that adds nothing new is none.
        starts = [start for start in starts if start == 0 or start + length - stride < len(tokens)]
    if not starts:
        raise SequenceLengthError(
            f"data '{source}' has {len(tokens):,} tokens, fewer than one window of {length:,}",
            hint=f"pass more text, --set text.window={len(tokens)} or shorter, or --set text.tail=pad",
        )
    return [_window(tokens, start, length, stride, source) for start in starts[:most]]


def _window(tokens: npt.NDArray[np.int32], start: int, length: int, stride: int, source: str) -> TokenSample:
    ids = tokens[start : start + length]
    targets = np.full(len(ids), _IGNORED, np.int32)
    targets[:-1] = ids[1:]
    # What an earlier window has predicted is only read again.
    targets[: max(length - stride - 1, 0) if start else 0] = _IGNORED
    return TokenSample(
        ids=ids, types=np.zeros(len(ids), np.int8), targets=targets, label=None, name=f"{source}[{start}]"
    )


def _collected(stream: Iterable[_Ids], enough: int | None, source: str) -> npt.NDArray[np.int32]:
    parts: list[npt.NDArray[np.int32]] = []
    count = 0
    for part in stream:
        parts.append(part.astype(np.int32))
        count += len(part)
        if enough is not None and count >= enough:
            break
        _require_room(count, source)
    return np.concatenate(parts)[:enough] if parts else np.empty(0, np.int32)


def _require_room(count: int, source: str) -> None:
    if count > MOST_TOKENS:
        raise SequenceLengthError(
            f"data '{source}' has more than {MOST_TOKENS:,} tokens",
            hint="take the first of them with --samples N (--eval-samples N), or divide the file",
        )


def singly(rows: Iterable[TextRow]) -> Iterator[TextRow]:
    """Yield each text of a pair as a row of its own."""
    for row in rows:
        yield from (replace(row, texts=(text,)) for text in row.texts)


def samples_of(
    rows: Iterable[TextRow],
    tokenizer: TextTokenizer,
    source: str,
    *,
    longest: int,
    masked: float,
    most: int | None,
) -> list[TokenSample]:
    """Return a sample for each text or pair; longer ones are cut.

    The tokenizer's mask token replaces the share ``masked`` of the tokens.
    """
    found: list[TokenSample] = []
    count = 0
    for row in rows:
        if most is not None and len(found) >= most:
            break
        encoded = tokenizer.encode(row.texts, longest)
        if encoded.special.all():
            raise EmptyDataError(f"the text of {row.name} is empty", hint="remove the row")
        sample = TokenSample(
            ids=encoded.ids.astype(np.int32),
            types=encoded.types.astype(np.int8),
            targets=np.append(encoded.ids[1:], _IGNORED).astype(np.int32),
            label=row.label,
            name=row.name,
            is_cut=encoded.is_cut,
        )
        if masked:
            sample = _masked(sample, encoded, tokenizer, masked, len(found))
        found.append(sample)
        count += len(sample.ids)
        _require_room(count, source)
    if not found:
        raise EmptyDataError(f"data '{source}' holds no text", hint="pass a file with text")
    return found


def _masked(
    sample: TokenSample, encoded: Encoded, tokenizer: TextTokenizer, share: float, number: int
) -> TokenSample:
    """Return the sample with tokens hidden, at places that depend on its number alone; at least one is."""
    if tokenizer.mask is None:
        raise TokenizerError(
            f"'{tokenizer.name}' has no mask token, which 'text.mask_share' needs",
            hint="leave 'text.mask_share' out; causal models have the metric perplexity",
        )
    places = np.flatnonzero(~encoded.special)
    chosen = np.random.default_rng(number).random(len(places))
    hidden = places[chosen <= max(share, float(chosen.min()))]
    ids, targets = sample.ids.copy(), np.full(len(sample.ids), _IGNORED, np.int32)
    targets[hidden], ids[hidden] = ids[hidden], tokenizer.mask
    return replace(sample, ids=ids, targets=targets)


IDS, _MASK, _POSITIONS, _TYPES = "input_ids", "attention_mask", "position_ids", "token_type_ids"
_NAMES = (IDS, _MASK, _POSITIONS, _TYPES)
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
    fixed = [inputs[name].shape[1] for name in _NAMES if name in inputs and len(inputs[name].shape) == 2]
    # A mask over a cache of fixed length is longer than the window: it does not tell the window.
    if _MASK in inputs and inputs[_MASK].shape[1:] and fixed and _cached(inputs):
        fixed = [inputs[IDS].shape[1]] if IDS in inputs else []
    sizes = [size for size in fixed if size is not None]
    if sizes and wanted not in (None, sizes[0]):
        raise SequenceLengthError(
            f"'text.window' is {wanted} tokens, but the model takes sequences of {sizes[0]}",
            hint=f"leave 'text.window' out, or pass --set text.window={sizes[0]}",
        )
    limits = (rows_of(inputs.get(_POSITIONS)), longest_of(inputs.get(IDS)))
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
            for name in _NAMES
        }
        if cached:
            specs[_MASK] = TensorSpec(_MASK, specs[_MASK].dtype, (None, cached + window))
        caches = {name: empty_cache(spec) for name, spec in inputs.items() if is_cache(name)}
        return cls(window=window, pad=pad, specs={**specs, **caches}, cached=cached)

    def arrays(self, samples: Sequence[TokenSample], wanted: Iterable[str]) -> dict[str, Array]:
        """Return the wanted arrays of some samples.

        Shapes: those of ``specs``, with the samples first.
        """
        return {name: self._array(name, samples).astype(self.specs[name].dtype) for name in wanted}

    def targets(self, samples: Sequence[TokenSample]) -> Array:
        """Return the token that each position should give, [N, window]; -100 where none counts."""
        return self._filled([sample.targets for sample in samples], _IGNORED)

    def _array(self, name: str, samples: Sequence[TokenSample]) -> Array:
        count = len(samples)
        if name == IDS:
            return self._filled([sample.ids for sample in samples], self.pad)
        if name == _TYPES:
            return self._filled([sample.types for sample in samples], 0)
        if name == _POSITIONS:
            return np.broadcast_to(np.arange(self.window), (count, self.window))
        if name == _MASK:
            ones = self._filled([np.ones(len(sample.ids), np.int64) for sample in samples], 0)
            return np.concatenate([np.zeros((count, self.cached), np.int64), ones], axis=1)
        return np.zeros(tuple(count if size is None else size for size in self.specs[name].shape), np.float32)

    def _filled(self, rows: Sequence[Array], value: int) -> Array:
        found = np.full((len(rows), self.window), value, np.int64)
        for place, row in zip(found, rows, strict=True):
            place[: len(row)] = row
        return found
