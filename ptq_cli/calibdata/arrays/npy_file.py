"""An ``.npy`` file: one array without a name."""

import contextlib
from pathlib import Path
from typing import IO

from ptq_cli.calibdata.arrays.array_rows import ArrayDataset
from ptq_cli.calibdata.arrays.npy_header import ArrayHeader, read_header, require_size
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS
from ptq_cli.core.errors import DataFormatError, InputFileError


class NpyDataset(ArrayDataset):
    """The rows of an ``.npy`` file.

    Raises:
        DataFormatError: it is damaged, holds Python objects, or is in Fortran order.
        DataShapeError: it has no axis for the samples.
        EmptyDataError: it has no values.

    Example:
        >>> import tempfile, numpy as np
        >>> path = Path(tempfile.mkdtemp()) / "x.npy"
        >>> np.save(path, np.zeros((5, 2), np.float32))
        >>> [batch.names for batch in NpyDataset(str(path), samples=3).batches(2)]
        [('x.npy[0]', 'x.npy[1]'), ('x.npy[2]',)]
    """

    def __init__(self, source: str, samples: int | None = None) -> None:
        with contextlib.ExitStack() as stack:
            _, header = _open_checked(source, stack)
        super().__init__(source, {ANONYMOUS: header}, None, samples)

    def _open(self, stack: contextlib.ExitStack) -> dict[str, IO[bytes]]:
        stream, header = _open_checked(self.source, stack)
        if header != self._headers[ANONYMOUS]:
            raise DataFormatError(f"data '{self.source}' changed since it was opened", hint="run again")
        return {ANONYMOUS: stream}

    def _where(self, name: str) -> str:
        del name  # there is only one array
        return f"data '{self.source}'"


def _open_checked(source: str, stack: contextlib.ExitStack) -> tuple[IO[bytes], ArrayHeader]:
    path = Path(source)
    try:
        stream = stack.enter_context(path.open("rb"))
        size = path.stat().st_size
    except OSError as error:
        raise InputFileError(
            f"data '{source}' cannot be read: {error.strerror}", hint="check the file and its permissions"
        ) from error
    header = read_header(stream, f"data '{source}'")
    require_size(header, size, f"data '{source}'")
    return stream, header
