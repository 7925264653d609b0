import io
import struct

import numpy as np
import pytest

from ptq_cli.calibdata.npy_header import MAX_HEADER_BYTES, ArrayHeader, read_header, require_size
from ptq_cli.core.errors import DataFormatError, DataShapeError, EmptyDataError
from tests.each_case import each_case


def stream_of(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return io.BytesIO(stream.getvalue())


def stream_with(text, version=(1, 0)):
    encoded = text.encode("latin1")
    length = struct.pack("<H" if version == (1, 0) else "<I", len(encoded))
    return io.BytesIO(b"\x93NUMPY" + bytes(version) + length + encoded)


def header_text(shape, descr="'<f4'", fortran="False"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def test_header_of_a_saved_array():
    stream = stream_of(np.zeros((5, 3), np.float32))
    header = read_header(stream, "it")
    assert (header.dtype, header.shape, len(header.raw)) == (np.float32, (5, 3), stream.tell())
    assert header.end == len(stream.getvalue())


def test_version_2_is_read():
    assert read_header(stream_with(header_text("(2,)"), (2, 0)), "it").shape == (2,)


def test_spec_is_of_native_byte_order():
    assert ArrayHeader(np.dtype(">f4"), (5, 3), b"").spec("x").dtype == np.dtype("float32")


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_one_sample_has_an_axis_before_its_own(shape):
    assert read_header(stream_of(np.zeros(shape, np.float32)), "it", one_sample=True).shape == (1, *shape)


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


@each_case("length", [0, 3, 7, 8, 9, 10, 40])
def test_truncated_header(length):
    content = stream_of(np.zeros((5, 3))).getvalue()[:length]
    with pytest.raises(DataFormatError):
        read_header(io.BytesIO(content), "it")


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


def test_fortran_order_is_refused_with_the_remedy():
    with pytest.raises(DataFormatError, match="Fortran order, expected C order") as error:
        read_header(stream_of(np.asfortranarray(np.zeros((2, 3)))), "it")
    assert "ascontiguousarray" in error.value.hint


def test_fortran_order_of_one_axis_is_no_order():
    assert read_header(stream_with(header_text("(2,)", fortran="True")), "it").shape == (2,)


@pytest.mark.parametrize(("size", "kind"), [(99, "truncated"), (101, "damaged")])
def test_size_must_be_what_the_header_says(size, kind):
    with pytest.raises(DataFormatError, match=f"it is {kind}: found {size} bytes, float32.5, 3. takes 100"):
        require_size(ArrayHeader(np.dtype("float32"), (5, 3), bytes(40)), size, "it")
