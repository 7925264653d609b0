"""A user's callable that yields batches: ``file.py:callable`` or ``package.module:callable``."""

import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ptq_cli.calibdata.callables.yielded import Arrays, as_arrays, as_batch
from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.items_dataset import ItemsDataset
from ptq_cli.calibdata.dataset.rebatch import cut, rebatch
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.core.entry_point import load_entry_point
from ptq_cli.core.errors import DataFormatError, EmptyDataError, EntryPointError, InputFileError, LabelError
from ptq_cli.core.read_files import sha256_file, sha256_text
from ptq_cli.core.tensors import Array


class CallableDataset(ItemsDataset):
    r"""The samples that a callable yields; it is called without arguments, again for each iteration.

    Its batches may have any size: they are split and joined to the requested size. On opening, the first
    batch is made one extra time to learn names, shapes and dtypes before anything runs.

    Raises:
        EntryPointError: the callable cannot be imported, or raised.
        DataFormatError: it yields something other than arrays.
        EmptyDataError: it yields nothing.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "data.py"
        >>> _ = path.write_text("import numpy as np\ndef ones(): yield np.ones((3, 2))")
        >>> dataset = CallableDataset(f"{path}:ones")
        >>> dataset.count, [batch.size for batch in dataset.batches(2)]
        (None, [2, 1])
    """

    def __init__(self, source: str, samples: int | None = None) -> None:
        self.source = source
        self.count: int | None = None
        self.class_names: tuple[str, ...] = ()
        self._samples = samples
        self._callable = load_entry_point(source, Path.cwd(), "data")
        # Of a Python object, the name may hold a hash of a part of its values.
        self.is_resumable = bool(getattr(self._callable, "is_identified", True))
        self._peeked: Iterator[Any] | None = None
        arrays, labels = self._peek()
        self.has_labels = labels is not None
        super().__init__(arrays)

    def digest(self) -> str:
        """SHA-256 of the callable's name and the text of its file; what the file reads is not covered."""
        location, _, name = self.source.rpartition(":")
        path = Path(location)
        if not location.endswith(".py"):
            module_file = getattr(sys.modules[location], "__file__", None)
            if module_file is None:
                return sha256_text(self.source)  # built into the interpreter: it has no source text
            path = Path(module_file)
        try:
            return sha256_text(f"{name}\n{sha256_file(path)}")
        except OSError as error:
            raise InputFileError(
                f"data '{self.source}' cannot be read: {error.strerror}",
                hint="check the file and its permissions",
            ) from error

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        iterable = self._call()
        if iterable is self._peeked:
            raise DataFormatError(
                f"data '{self.source}' returned the same iterator twice, and its first batch is used up",
                hint="create the generator inside the function",
            )
        # Batches in between cannot be skipped: the callable runs, but their arrays are not copied.
        return rebatch(self._limited(iterable), batch_size, selection)

    def _limited(self, iterable: Iterable[Any]) -> Generator[Batch]:
        left = self._samples
        for number, batch in enumerate(self._batches(iterable)):
            if (batch.labels is not None) != self.has_labels:
                found = "no labels" if self.has_labels else "labels"
                raise LabelError(
                    f"{self._where(number)} has {found}, unlike the first batch",
                    hint="yield labels always or never",
                )
            if left is not None and batch.size >= left:
                yield cut(batch, 0, left)
                return
            yield batch
            left = None if left is None else left - batch.size

    def _peek(self) -> tuple[Arrays, Array | None]:
        iterable = self._call()
        # Reading the first batch uses up only an iterator; a list, which may be large, is not kept.
        self._peeked = iterable if isinstance(iterable, Iterator) else None
        with closing(self._values(iterable)) as values:
            for value in values:
                return as_arrays(value, self._where(0))
        raise EmptyDataError(f"data '{self.source}' yields no batches", hint="yield at least one batch")

    def _call(self) -> Iterable[Any]:
        try:
            result = self._callable()
        except Exception as error:
            raise self._raised(error, "when called") from error
        is_one_batch = isinstance(result, (dict, str, bytes)) or hasattr(result, "__array__")
        if is_one_batch or not isinstance(result, Iterable):
            raise DataFormatError(
                f"data '{self.source}' returned a {type(result).__name__}, expected an iterable of batches",
                hint="yield each batch, or return a list of them",
            )
        return result

    def _batches(self, iterable: Iterable[Any]) -> Generator[Batch, None, None]:
        short = f"{Path(self.source.rpartition(':')[0]).name}:{self.source.rpartition(':')[2]}"
        start = 0
        for number, value in enumerate(self._values(iterable)):
            batch = as_batch(value, self._where(number), short, start, self._axes, singles=self._singles)
            yield batch
            start += batch.size

    def _values(self, iterable: Iterable[Any]) -> Generator[Any, None, None]:
        number = 0
        try:
            # Only the user's code runs between the yields, so it raised the exception.
            iterator = iter(iterable)
            while True:
                try:
                    value = next(iterator)
                except StopIteration:
                    return
                yield value
                number += 1
        except Exception as error:
            raise self._raised(error, f"in batch {number}") from error

    def _raised(self, error: Exception, when: str) -> EntryPointError:
        return EntryPointError(
            f"data '{self.source}' raised {when}: {type(error).__name__}: {error}",
            hint="run the callable in python to see the whole traceback, or pass --debug",
        )

    def _where(self, number: int) -> str:
        return f"batch {number} of '{self.source}'"
