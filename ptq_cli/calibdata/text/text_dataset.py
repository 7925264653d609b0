"""Texts as samples: windows of tokens, or a text each, with all inputs that a model takes of them."""

import copy
import hashlib
import json
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Self

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, Selection
from ptq_cli.calibdata.dataset.data_files import digest_files
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.labels import as_labels
from ptq_cli.calibdata.text.text_rows import columns_of, kind_of, text_rows
from ptq_cli.calibdata.text.token_samples import (
    IDS,
    ArrayLayout,
    TextTokenizer,
    TokenSample,
    pieces_of,
    require_tokens,
    samples_of,
    singly,
    window_of,
    windows_of,
)
from ptq_cli.core.errors import SequenceLengthError
from ptq_cli.core.tensors import Array, TensorSpec, is_cache, rows_of
from ptq_cli.recipe.sections import TextSettings


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
        require_tokens(made._samples, rows_of(inputs.get(IDS)), self._tokenizer.name)
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
        return samples_of(
            singly(rows) if settings.pairs == "apart" else rows,
            self._tokenizer,
            self.source,
            longest=window,
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
