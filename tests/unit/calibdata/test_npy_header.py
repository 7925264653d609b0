import io
import struct

import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpyDataset, NpzDataset, read_rows
from ptq_cli.calibdata.npy_header import MAX_HEADER_BYTES, ArrayHeader, read_header, require_size
from ptq_cli.core.errors import DataFormatError, DataShapeError, EmptyDataError, InputFileError
from tests.each_case import each_case
from tests.unit.calibdata.conftest import npy, peak_of_iterating


@pytest.fixture
def path(tmp_path, rng):
    np.save(tmp_path / "x.npy", rng.normal(size=(7, 3)).astype(np.float32))
    return tmp_path / "x.npy"


def test_batches_are_the_rows_in_order(path):
    batches = list(NpyDataset(str(path)).batches(3))
    assert [batch.size for batch in batches] == [3, 3, 1]
    np.testing.assert_array_equal(np.concatenate([batch.inputs[""] for batch in batches]), np.load(path))
    assert batches[1].names == ("x.npy[3]", "x.npy[4]", "x.npy[5]")
    assert batches[0].labels is None


def test_big_endian_becomes_native(tmp_path):
    values = np.arange(6, dtype=">f4").reshape(3, 2)
    np.save(tmp_path / "x.npy", values)
    dataset = NpyDataset(str(tmp_path / "x.npy"))
    (batch,) = dataset.batches(3)
    assert dataset.specs[""].dtype == batch.inputs[""].dtype == np.dtype("float32")
    np.testing.assert_array_equal(batch.inputs[""], values)


def test_file_that_changed_is_noticed(path):
    dataset = NpyDataset(str(path))
    np.save(path, np.zeros((7, 4), np.float32))
    with pytest.raises(DataFormatError, match="changed since it was opened"):
        next(dataset.batches(1))


def test_file_that_vanished(path):
    dataset = NpyDataset(str(path))
    path.unlink()
    with pytest.raises(InputFileError, match="cannot be read: No such file"):
        next(dataset.batches(1))
    with pytest.raises(InputFileError, match="cannot be read: No such file"):
        dataset.digest()


def stream_of(array):
    return io.BytesIO(npy(array))


def stream_with(text, version=(1, 0)):
    encoded = text.encode("latin1")
    length = struct.pack("<H" if version == (1, 0) else "<I", len(encoded))
    return io.BytesIO(b"\x93NUMPY" + bytes(version) + length + encoded)


def header_text(shape, descr="'<f4'", fortran="False"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def test_one_sample_in_fortran_order():
    with pytest.raises(DataFormatError, match="it is stored in Fortran order"):
        read_header(stream_of(np.asfortranarray(np.zeros((2, 3)))), "it", one_sample=True)
    assert read_header(stream_with(header_text("(3,)", fortran="True")), "it", one_sample=True).shape == (
        1,
        3,
    )


HOSTILE = {
    "code": "__import__('os').abort()",
    "no_dict": "[1, 2]",
    "keys": "{'descr': '<f4'}",
    "negative_shape": header_text("(-4, 2)"),
    "shape_of_texts": header_text("('a',)"),
    "unknown_dtype": header_text("(2,)", "'<q9'"),
    "deep_nesting": "(" * 4000,
    "many_minuses": "-" * 9000 + "1",
    "huge_number": header_text("(" + "9" * 6000 + ",)"),
    "escape": "{'\\d': 1}",
    "python_2_long": header_text("(5L, 'a')"),
    "fields": header_text("(2,)", "[('a', '<f4')]"),
    "subarray": header_text("(2,)", "('<f4', (3,))"),
    "text": header_text("(2,)", "'<U4'"),
    "void": header_text("(2,)", "'|V8'"),
    "huge_sample": header_text(f"(1, {2**40})"),
    "complex": header_text("(2,)", "'<c8'"),
}


@each_case("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_header_is_a_format_error(text):
    with pytest.raises(DataFormatError, match=": it "):
        read_header(stream_with(text), "it")


@pytest.mark.parametrize("descr", ["'|O'", "[('a', '|O')]"], ids=["objects", "field_of_objects"])
def test_objects_are_never_unpickled(descr):
    with pytest.raises(DataFormatError, match="holds Python objects, which ptq never unpickles"):
        read_header(stream_with(header_text("(2,)", descr)), "it")


def test_length_field_is_not_trusted():
    claim = io.BytesIO(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{}")
    with pytest.raises(DataFormatError, match="its length is 4294967295 bytes"):
        read_header(claim, "it")
    assert MAX_HEADER_BYTES < 2**16


def test_unknown_version_is_named():
    with pytest.raises(DataFormatError, match=r"npy version 9\.0, expected 1\.0 or 2\.0"):
        read_header(io.BytesIO(b"\x93NUMPY\x09\x00" + bytes(100)), "it")


def test_single_value_has_no_axis_for_samples():
    with pytest.raises(DataShapeError, match="it is a single value, expected an axis for the samples"):
        read_header(stream_of(np.float32(3)), "it")


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_array_without_values(shape):
    with pytest.raises(EmptyDataError, match="has no values"):
        read_header(stream_of(np.zeros(shape)), "it")


@pytest.mark.parametrize(("size", "kind"), [(99, "truncated"), (101, "damaged")])
def test_size_must_be_what_the_header_says(size, kind):
    with pytest.raises(DataFormatError, match=f"it is {kind}: found {size} bytes, float32.5, 3. takes 100"):
        require_size(ArrayHeader(np.dtype("float32"), (5, 3), bytes(40)), size, "it")


@pytest.mark.parametrize("kind", ["npy", "stored", pytest.param("compressed", marks=pytest.mark.nightly)])
def test_peak_memory_does_not_grow_with_the_samples(tmp_path, rng, kind):
    # 6 KB a sample: the whole of the larger set is 31 MB, a batch 0.2 MB.
    values = rng.integers(0, 255, size=(5000, 1536), dtype=np.uint8).astype(np.float32)
    peaks = []
    for count in (512, 5000):
        path = tmp_path / f"{count}"
        with path.open("wb") as stream:
            if kind == "npy":
                np.save(stream, values[:count])
            else:
                (np.savez if kind == "stored" else np.savez_compressed)(stream, x=values[:count])
        peaks.append(peak_of_iterating((NpyDataset if kind == "npy" else NpzDataset)(str(path))))
    assert peaks[1] < 1.05 * peaks[0]
    assert peaks[1] < 1e6


def test_stream_that_ends_early():
    header = ArrayHeader(np.dtype("int32"), (6,), 0)
    with pytest.raises(DataFormatError, match="it is truncated: found 6 bytes of a batch, expected 8"):
        read_rows(io.BytesIO(bytes(6)), header, 2, "it")


def test_rows_that_do_not_fit_in_memory():
    header = ArrayHeader(np.dtype("float32"), (2**40, 2**29), 0)
    with pytest.raises(DataFormatError, match="samples of 2147483648 bytes do not fit in memory") as error:
        read_rows(io.BytesIO(), header, 2**30, "it")
    assert error.value.hint == "lower batch_size"
