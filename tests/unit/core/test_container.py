"""The container of what is stored: the bytes that safetensors itself writes, and what is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load, save

from ptq_cli.core.container import DTYPES, HEADER_KEY, Container, checksum
from ptq_cli.core.errors import CalibrationFileError

KIND = Container(
    format="ptq.test",
    version=1,
    error=CalibrationFileError,
    what="a test",
    made_by="none makes one",
    again="make it again",
    is_flat=False,
)
ARRAYS = {
    f"{place} {code}": np.arange(6).astype(code).reshape(2, 3)[place:]
    for place in (0, 1)
    for code in DTYPES.values()
} | {"none": np.zeros(0, np.float32), "ä\t": np.zeros((3, 0), np.int64)}


def test_the_bytes_are_those_of_safetensors() -> None:
    content = KIND.content({"about": "ü"}, ARRAYS)
    header = {"format": "ptq.test", "format_version": 1, "about": "ü"}
    header["checksum"] = checksum(header, ARRAYS)
    assert content == save(ARRAYS, metadata={HEADER_KEY: json.dumps(header, sort_keys=True)})
    assert {name: array.tolist() for name, array in load(content).items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }


def test_what_is_read_is_what_was_written() -> None:
    header, arrays = KIND.parse(KIND.content({"about": 1}, ARRAYS), "it", lambda *both: both)
    assert header["about"] == 1
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


def test_bytes_that_no_array_has_are_damage() -> None:
    with pytest.raises(CalibrationFileError, match="its arrays are not all of it"):
        KIND.parse(KIND.content({}, ARRAYS) + b"x", "it", lambda *both: both)
