"""Integers of a large model are written as they are decided."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import OutputFileError
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.qdq.write import weight_quantizer as streamed_weights
from ptq_cli.qdq.write.weight_quantizer import StoredWeight, StreamedWeights
from tests.each_case import each_case

RANDOM = np.random.default_rng(0)
CASES = {
    "int8": (RANDOM.integers(-128, 128, (200, 128), np.int8), 8),
    "columns first": (np.asfortranarray(RANDOM.integers(-128, 128, (200, 128), np.int8)), 8),
    "4 bits": (RANDOM.integers(-8, 8, (300, 201), np.int8), 4),
    "4 bits, unsigned": (RANDOM.integers(0, 16, (300, 200), np.uint8), 4),
    "2 bits": (RANDOM.integers(-2, 2, (300, 400), np.int8), 2),
}


@each_case("case", CASES)
def test_integers_are_in_the_file_as_onnx_stores_them(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_weights, "_PART", 1 << 10)
    array, bits = CASES[case]
    file = ConstantsFile(tmp_path, "m.onnx")
    keep = StreamedWeights(file)
    small = StoredWeight(integers=array[:2, :8], bits=bits)
    assert keep(small, "small") is small
    keep(StoredWeight(integers=array, bits=bits), "first")
    kept = keep(StoredWeight(integers=array, bits=bits), "w")
    found = kept.integers
    assert isinstance(found, ir.ExternalTensor)
    assert found.length == -(-array.size * bits // 8)
    assert found.offset == -(-found.length // 4096) * 4096
    assert kept.shape == array.shape
    np.testing.assert_array_equal(kept.array(), array)
    assert kept.array().dtype == array.dtype
    assert keep(kept, "w") is kept


def test_nothing_is_left_of_a_file_that_nobody_moves(tmp_path: Path) -> None:
    keep = StreamedWeights(ConstantsFile(tmp_path, "m.onnx"))
    keep(StoredWeight(integers=np.ones((200, 128), np.int8)), "w")
    assert list(tmp_path.rglob("*.data"))
    del keep
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFileError, match="cannot write in"):
        ConstantsFile(tmp_path / "file" / "run", "m.onnx")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_error: object) -> None:
            pass

        def seek(self, _offset: int, _whence: int) -> None:
            pass

        def tell(self) -> int:
            return 0

        def write(self, _content: bytes) -> None:
            raise OSError(28, "No space left on device")

    file = ConstantsFile(tmp_path, "m.onnx")
    keep = StreamedWeights(file)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_: Full())
        with pytest.raises(OutputFileError, match=r"cannot write '.*m\.onnx\.data': no space left on device"):
            keep(StoredWeight(integers=np.ones((200, 128), np.int8)), "w")
    assert not list(tmp_path.iterdir())
