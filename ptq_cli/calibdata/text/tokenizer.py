"""A tokenizer.json as a function from texts to tokens. It is data: nothing in it is run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.core.errors import TokenizerError, first_line
from ptq_cli.core.read_files import require_file

Ids = npt.NDArray[np.int64]
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

    ids: Ids
    types: Ids
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

    def stream(self, pieces: Iterator[str]) -> Iterator[Ids]:
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
