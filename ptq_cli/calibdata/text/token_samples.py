"""Tokens cut into samples of one length: windows of a stream, or one text each."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.text.text_rows import TextRow
from ptq_cli.calibdata.text.tokenizer import Encoded, Ids, TextTokenizer
from ptq_cli.core.errors import EmptyDataError, SequenceLengthError, TokenizerError

IGNORED = -100  # label of a position that does not count
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
    stream: Iterable[Ids], source: str, *, length: int, stride: int, pad: bool, most: int | None
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
    targets = np.full(len(ids), IGNORED, np.int32)
    targets[:-1] = ids[1:]
    # What an earlier window has predicted is only read again.
    targets[: max(length - stride - 1, 0) if start else 0] = IGNORED
    return TokenSample(
        ids=ids, types=np.zeros(len(ids), np.int8), targets=targets, label=None, name=f"{source}[{start}]"
    )


def _collected(stream: Iterable[Ids], enough: int | None, source: str) -> npt.NDArray[np.int32]:
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
            targets=np.append(encoded.ids[1:], IGNORED).astype(np.int32),
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
    ids, targets = sample.ids.copy(), np.full(len(sample.ids), IGNORED, np.int32)
    targets[hidden], ids[hidden] = ids[hidden], tokenizer.mask
    return replace(sample, ids=ids, targets=targets)
