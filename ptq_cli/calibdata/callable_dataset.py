"""Batches that a user's callable yields: ``file.py:callable`` or ``package.module:callable``."""

import numbers
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, Selection, first_samples, indexed_names, rebatch
from ptq_cli.calibdata.dataset.data_files import unreadable
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, POSITION
from ptq_cli.calibdata.dataset.items import ItemsDataset, batch_of
from ptq_cli.calibdata.dataset.labels import LABEL_NAMES, find_label
from ptq_cli.core.entry_points import load_entry_point
from ptq_cli.core.errors import DataFormatError, EmptyDataError, EntryPointError, LabelError
from ptq_cli.core.read_files import sha256_file, sha256_text
from ptq_cli.core.tensors import Array

_WANTED = "a dict of arrays by input name, a tuple of arrays, or one array"
_Arrays = dict[str, Array]


def as_arrays(value: Any, where: str) -> tuple[_Arrays, Array | None]:
    """Return the arrays of a yielded value by name, and its labels where it names them.

    Args:
        value: arrays by input name, optionally with a ``label``; one array; or a tuple of arrays in the order
            of the model's inputs, of which the last may be the labels. The first of two may be a dict or a
            tuple itself, and the second is the labels then.
        where: how messages call the batch; they begin with it.

    Example:
        >>> arrays, labels = as_arrays((np.zeros((2, 3)), np.array([1, 0])), "batch 0")
        >>> list(arrays), labels
        (['#0', '#1'], None)
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    label = None
    if isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], (Mapping, tuple, list)):
        value, second = value
        label = _as_array(second, f"the label of {where}")
    if isinstance(value, Mapping):
        arrays = _named(value, where)
    elif isinstance(value, (tuple, list)):
        arrays = _placed(value, where)
    else:
        arrays = {ANONYMOUS: _as_array(value, where, is_part=False)}
    named = find_label([*arrays, *([LABEL_NAMES[0]] if label is not None else [])], where)
    if named in arrays:
        label = arrays.pop(named)
    if not arrays:
        raise EmptyDataError(f"{where} has no input array", hint=f"yield {_WANTED}")
    return arrays, label


def _named(value: Mapping[Any, Any], where: str) -> _Arrays:
    for name in value:
        if not isinstance(name, str):
            raise DataFormatError(
                f"{where} has the key {name!r}, expected the name of an input",
                hint="yield a dict from the names of inputs to arrays",
            )
    return {name: _as_array(item, f"array '{name}' of {where}") for name, item in value.items()}


def _placed(values: Sequence[Any], where: str) -> _Arrays:
    if not any(getattr(item, "ndim", 0) for item in values):
        raise _no_array(values, where)  # Numbers: the type of an array of them would be a guess.
    arrays = [_as_array(item, f"array {index} of {where}") for index, item in enumerate(values)]
    if len(arrays) == 1:
        return {ANONYMOUS: arrays[0]}
    return {f"{POSITION}{index}": array for index, array in enumerate(arrays)}


def _no_array(item: object, where: str) -> DataFormatError:
    return DataFormatError(
        f"{where} is a {type(item).__name__}, expected {_WANTED}", hint="make an array with numpy.asarray"
    )


def _as_array(item: Any, where: str, *, is_part: bool = True) -> Array:
    # torch's tensors and others have __array__; the dtype of a list would be a guess.
    if not hasattr(item, "__array__") and not (is_part and isinstance(item, numbers.Real)):
        raise _no_array(item, where)
    try:
        array = np.asarray(item.detach() if hasattr(item, "detach") else item)
    except Exception as error:  # the user's type may raise anything; it is reported, not hidden
        raise DataFormatError(
            f"{where} cannot be converted to a numpy array: {type(error).__name__}: {error}",
            hint="for a torch tensor, yield tensor.detach().cpu()",
        ) from error
    if array.dtype.kind not in "biuf":
        raise DataFormatError(
            f"{where} has dtype {array.dtype}, expected numbers", hint="yield an array of numbers"
        )
    # Copied, because the callable may write to the same array again while this batch is still waiting.
    return np.array(array, array.dtype.newbyteorder("="), order="C")


class CallableDataset(ItemsDataset):
    r"""The samples that a callable yields; it is called without arguments, again for each iteration.

    Its batches may have any size: they are split and joined to the requested size. On opening, the first
    batch is made one extra time to learn names, shapes and dtypes before anything runs.
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
            raise unreadable(f"data '{self.source}'", error) from error

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        iterable = self._call()
        if iterable is self._peeked:
            raise DataFormatError(
                f"data '{self.source}' returned the same iterator twice, and its first batch is used up",
                hint="create the generator inside the function",
            )
        # Batches in between cannot be skipped: the callable runs, but their arrays are not copied.
        return rebatch(first_samples(self._labelled(iterable), self._samples), batch_size, selection)

    def _labelled(self, iterable: Iterable[Any]) -> Generator[Batch]:
        for number, batch in enumerate(self._batches(iterable)):
            if (batch.labels is not None) != self.has_labels:
                found = "no labels" if self.has_labels else "labels"
                raise LabelError(
                    f"{self._where(number)} has {found}, unlike the first batch",
                    hint="yield labels always or never",
                )
            yield batch

    def _peek(self) -> tuple[_Arrays, Array | None]:
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
            where = self._where(number)
            names = partial(indexed_names, short, start)
            batch = batch_of(*as_arrays(value, where), where, names, self._axes, singles=self._singles)
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
