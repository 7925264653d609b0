"""Integers of a large model wait in a file."""

from pathlib import Path

import numpy as np
import pytest

from ptq_cli.core.errors import OutputFileError
from ptq_cli.qdq.write.spill import SMALL, SpilledArrays


def test_arrays_are_what_they_were_and_leave_no_file(tmp_path: Path) -> None:
    keep = SpilledArrays(tmp_path)
    random = np.random.default_rng(0)
    arrays = [random.integers(-128, 128, (rows, 1024), np.int8) for rows in (1500, 1, 1025)]
    arrays.append(np.asfortranarray(arrays[0][:1200]))
    kept = [keep(array) for array in arrays]
    assert [isinstance(array, np.memmap) for array in kept] == [True, False, True, True]
    del keep
    for array, before in zip(kept, arrays, strict=True):
        np.testing.assert_array_equal(array, before)
        assert array.dtype == before.dtype
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFileError, match="cannot write in"):
        SpilledArrays(tmp_path / "file" / "run")


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    class Full:
        def tell(self) -> int:
            return 0

        def write(self, _content: bytes) -> None:
            raise OSError(28, "No space left on device")

    keep = SpilledArrays(tmp_path)
    keep._file.close()
    keep._file = Full()  # type: ignore[assignment]
    with pytest.raises(OutputFileError, match="no space left on device"):
        keep(np.zeros(SMALL, np.int8))
