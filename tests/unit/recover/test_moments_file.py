"""What is not a file of moments, or is damaged, is an error and never a wrong number."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptq_cli.collectors.calibration_file import Provenance
from ptq_cli.collectors.share import Share
from ptq_cli.core.errors import InputFileError, MomentsFileError
from ptq_cli.recover.input_moments import InputMoments
from ptq_cli.recover.moments_file import Moments, load_moments, moments_bytes, save_moments
from ptq_cli.recover.tensor_moments import TensorMoments
from tests.each_case import each_case

PROVENANCE = Provenance(
    model="m", source="s", data="d", settings={"a": "1"}, flags={}, method="moments", samples=3
)
INPUTS = InputMoments(rows=3, sums=np.array([[1, 2]]), products=np.array([[4, 5, 6]]))
MOMENTS = Moments(PROVENANCE, {"x": TensorMoments(grid="uint8 0.5 0", readings={"1 x 2": INPUTS})})


def test_a_file_holds_what_was_saved(tmp_path: Path) -> None:
    share = Share(count=2, batches={1: 4}, batch_size=8)
    part = Moments(replace(PROVENANCE, share=share), MOMENTS.statistics)
    save_moments(part, tmp_path / "m.safetensors")
    found = load_moments(tmp_path / "m.safetensors")
    assert found.provenance == part.provenance
    own = found.statistics["x"].readings["1 x 2"]
    assert (own.rows, own.sums.tolist(), own.products.tolist()) == (3, [[1, 2]], [[4, 5, 6]])
    from safetensors.numpy import load_file  # Others can read it, too.

    assert load_file(tmp_path / "m.safetensors")["0.0.products"].tolist() == [[4, 5, 6]]


CONTENT = moments_bytes(MOMENTS)
LENGTH = int.from_bytes(CONTENT[:8], "little")


def header(**changes: object) -> bytes:
    table = json.loads(CONTENT[8 : 8 + LENGTH])
    inner = json.loads(table["__metadata__"]["ptq"]) | changes
    table["__metadata__"]["ptq"] = json.dumps(inner, sort_keys=True)
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + CONTENT[8 + LENGTH :]


DAMAGED = {
    "empty": (b"", "is damaged"),
    "short": (CONTENT[:5], "is damaged"),
    "no header": (b"\xff" * 64, "is damaged: it has no header"),
    "cut": (CONTENT[:-8], "is damaged"),
    "one bit": (CONTENT[:-1] + b"\x01", "is damaged: its checksum is wrong"),
    "other rows": (header(tensors=[]), "is damaged: its checksum is wrong"),
    "something else": (header(format="ptq.calibration"), "is not a file of moments"),
    "a later version": (header(format_version=9), "has format version 9, this version of ptq reads 2"),
}


@each_case("content, message", DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(MomentsFileError) as raised:
        load_moments(path)
    assert message in raised.value.message
    assert "ptq calibrate --moments" in raised.value.hint


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputFileError):
        load_moments(tmp_path / "none")


def test_sums_that_fit_take_four_bytes_each(tmp_path: Path) -> None:
    small, large = (replace(INPUTS, products=np.array([[4, 5, last]], np.int64)) for last in (6, 2**40))
    sizes = {}
    for name, own in {"small": small.merge(small), "large": large.merge(small)}.items():
        path = tmp_path / name
        save_moments(Moments(PROVENANCE, {"x": TensorMoments(grid="g", readings={"k": own})}), path)
        found = load_moments(path).statistics["x"].readings["k"].products
        assert found.tolist() == own.products.tolist()
        sizes[name] = found.dtype.itemsize
    assert sizes == {"small": 4, "large": 8}
