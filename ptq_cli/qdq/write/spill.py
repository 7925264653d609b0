"""Where the integers of a large model wait until it is written: in a file, one weight after the other."""

import mmap
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ptq_cli.core.errors import OutputFileError
from ptq_cli.core.tensors import Array

Keep = Callable[[Array], Array]
"""Returns an array that holds the same."""
SMALL = 1 << 20
"""Bytes; a smaller array stays in memory."""


def as_it_is(array: Array) -> Array:
    """Return an array itself.

    Example:
        >>> as_it_is(np.zeros(1, np.int8))
        array([0], dtype=int8)
    """
    return array


class SpilledArrays:
    """Moves large arrays out of memory, into a file without a name that goes with them.

    Example:
        >>> kept = SpilledArrays(Path(tempfile.gettempdir()))(np.ones(SMALL, np.int8))
        >>> type(kept).__name__, int(kept.sum()) == SMALL
        ('memmap', True)
    """

    def __init__(self, folder: Path) -> None:
        """Make the file.

        Raises:
            OutputFileError: it cannot be made in that folder.
        """
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the next line closes it
            weakref.finalize(self, self._file.close)  # What is mapped stays so.
        except OSError as error:
            raise self._cannot(error) from error

    def __call__(self, array: Array) -> Array:
        """Return an array, mapped where it is large.

        Raises:
            OutputFileError: the disk is full.
        """
        if array.nbytes < SMALL:
            return array
        try:
            self._file.write(bytes(-self._file.tell() % mmap.ALLOCATIONGRANULARITY))
            offset = self._file.tell()
            self._file.write(np.ascontiguousarray(array).data)
            self._file.flush()
        except OSError as error:
            raise self._cannot(error) from error
        return np.memmap(self._file, array.dtype, "r", offset, array.shape)

    def _cannot(self, error: OSError) -> OutputFileError:
        reason = (error.strerror or str(error)).lower()
        return OutputFileError(
            f"cannot write in '{self._folder}': {reason}", hint="check its permissions and free space"
        )
