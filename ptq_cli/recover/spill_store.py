"""Arrays by key: in memory as far as a limit goes, then in temporary files."""

import math
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ptq_cli.core.errors import OutputFileError
from ptq_cli.core.tensors import Array, is_array

IN_MEMORY = 2 << 30  # bytes, where no limit is given
LARGE = 1 << 24  # bytes; a file for less is not worth it


class SpillStore:
    """Arrays by key; above ``limit`` bytes in temporary files."""

    def __init__(self, folder: Path, *, limit: int = IN_MEMORY) -> None:
        """Keep ``limit`` bytes in memory, more in files without names, which go with the last reader."""
        self._folder, self._limit = folder, limit
        self._kept: dict[str, tuple[list[Array | None], int]] = {}
        self._filed: dict[str, _Filed] = {}
        self.held = 0
        self.moved = 0

    def __contains__(self, key: str) -> bool:
        """Whether there are arrays under a key."""
        return key in self._kept or key in self._filed

    def put(self, key: str, arrays: Sequence[Array | None], *, spill: bool = False) -> None:
        """Keep arrays under a key; with ``spill`` large ones, which wait long, in a file at once.

        Sequences of arrays, which ONNX has too, always stay in memory.
        """
        size = _size(arrays)
        fits = self.held + size <= self._limit and (size < LARGE or not spill)
        if fits or not all(item is None or is_array(item) for item in arrays):
            self._kept[key] = list(arrays), size
            self.held += size
            return
        self._filed[key] = _Filed(self._folder, arrays)
        self.moved += size

    def get(self, key: str, index: int) -> Array | None:
        """Return one of a key's arrays; several threads may ask at once."""
        filed = self._filed.get(key)
        return filed.read(index) if filed is not None else self._kept[key][0][index]

    def release(self, key: str, index: int) -> None:
        """Release one of a key's arrays that is in memory; the others, and what they count for, stay."""
        if key in self._kept:
            self._kept[key][0][index] = None

    def drop(self, key: str) -> None:
        """Release a key, if it is there."""
        self.held -= self._kept.pop(key, ((), 0))[1]
        filed = self._filed.pop(key, None)
        if filed is not None:
            filed.close()


def _size(arrays: Sequence[Array | None]) -> int:
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


class _Filed:
    """Arrays in a file of their own."""

    def __init__(self, folder: Path, arrays: Sequence[Array | None]) -> None:
        self._places: list[tuple[int, np.dtype[np.generic], tuple[int, ...]] | None] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the next line closes it
            self._closed = weakref.finalize(self, self._file.close)
            for array in arrays:
                if array is None:
                    self._places.append(None)
                    continue
                self._places.append((self._file.tell(), array.dtype, array.shape))
                self._file.write(np.ascontiguousarray(array).tobytes())
            self._file.flush()
        except OSError as error:
            raise OutputFileError(
                f"cannot write in '{folder}': {(error.strerror or str(error)).lower()}",
                hint="free some space, pass fewer --samples, or a larger --set runtime.max_memory=SIZE",
            ) from error

    def read(self, index: int) -> Array | None:
        place = self._places[index]
        if place is None:
            return None
        offset, dtype, shape = place
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        # Copied, so that no part of the file stays mapped.
        return np.array(np.memmap(self._file, dtype, "r", offset, shape))

    def close(self) -> None:
        self._closed()
