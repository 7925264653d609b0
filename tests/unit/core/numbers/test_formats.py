import numpy as np
import pytest

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.formats import BY_NAME, FLOATS, INT8, INT16, INTEGERS, UINT8, UINT16, IntegerFormat
from tests.each_case import each_case


@each_case(
    "bits, signed, narrow, qmin, qmax",
    [
        (2, True, False, -2, 1),
        (2, True, True, -1, 1),
        (2, False, False, 0, 3),
        (3, True, True, -3, 3),
        (4, True, False, -8, 7),
        (4, False, False, 0, 15),
        (8, True, False, -128, 127),
        (8, True, True, -127, 127),
        (8, False, False, 0, 255),
        (16, True, False, -32768, 32767),
        (16, False, False, 0, 65535),
    ],
)
def test_range(bits, signed, narrow, qmin, qmax):
    format = IntegerFormat(bits, signed, narrow)
    assert (format.qmin, format.qmax) == (qmin, qmax)


@each_case("bits", range(2, 17))
@each_case("signed", [True, False])
def test_storage_holds_the_range(bits, signed):
    format = IntegerFormat(bits, signed)
    info = np.iinfo(format.storage)
    assert info.min <= format.qmin
    assert format.qmax <= info.max
    assert format.storage.itemsize == (1 if bits <= 8 else 2)


@each_case("bits", [-1, 0, 1, 17])
def test_refuses_other_bits(bits):
    with pytest.raises(RecipeValueError, match=rf"{bits} bits is outside 2 to 16"):
        IntegerFormat(bits, signed=True)


def test_refuses_narrow_unsigned():
    with pytest.raises(RecipeValueError, match="unsigned format has no narrow range"):
        IntegerFormat(8, signed=False, narrow_range=True)


def test_names():
    assert {"int8": INT8, "uint8": UINT8, "int16": INT16, "uint16": UINT16} == INTEGERS
    assert {**INTEGERS, **FLOATS} == BY_NAME
    assert [format.name for format in BY_NAME.values()] == list(BY_NAME)
