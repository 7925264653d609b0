"""Quantized integer formats: how many bits, signed or not, and the range that follows."""

from dataclasses import dataclass

import numpy as np

from ptq_cli.core.errors import QuantizerValueError

MIN_BITS = 2
MAX_BITS = 16


@dataclass(frozen=True)
class IntegerFormat:
    """An integer format with ``bits`` bits.

    Attributes:
        bits: 2 to 16.
        signed: two's complement if true, otherwise from 0.
        narrow_range: the most negative value is not used, so that the range is symmetric about 0
            (-127…127 for int8). An unsigned format has no narrow range.

    Raises:
        QuantizerValueError: bits outside 2…16, or an unsigned format with a narrow range.

    Example:
        >>> IntegerFormat(8, signed=True, narrow_range=True)
        IntegerFormat(bits=8, signed=True, narrow_range=True)
        >>> INT8_NARROW.qmin, INT8_NARROW.qmax, UINT8.qmin, UINT8.qmax
        (-127, 127, 0, 255)
        >>> UINT8.name, IntegerFormat(4, signed=True).name
        ('uint8', 'int4')
    """

    bits: int
    signed: bool
    narrow_range: bool = False

    def __post_init__(self) -> None:
        if not MIN_BITS <= self.bits <= MAX_BITS:
            raise QuantizerValueError(
                f"{self.bits} bits is outside {MIN_BITS} to {MAX_BITS}", hint="the usual choice is 8 bits"
            )
        if self.narrow_range and not self.signed:
            raise QuantizerValueError("an unsigned format has no narrow range", hint="use a signed format")

    @property
    def qmin(self) -> int:
        """Smallest integer of the format."""
        if not self.signed:
            return 0
        return -(1 << (self.bits - 1)) + int(self.narrow_range)

    @property
    def qmax(self) -> int:
        """Largest integer of the format."""
        return (1 << (self.bits - 1 if self.signed else self.bits)) - 1

    @property
    def name(self) -> str:
        """``int8``, ``uint8``, ``int4``, …."""
        return f"{'int' if self.signed else 'uint'}{self.bits}"

    @property
    def storage(self) -> np.dtype[np.signedinteger] | np.dtype[np.unsignedinteger]:
        """The numpy dtype that holds the integers: 8 bits wide up to 8 bits, otherwise 16."""
        width = 8 if self.bits <= 8 else 16
        return np.dtype(f"{'int' if self.signed else 'uint'}{width}")


INT8 = IntegerFormat(8, signed=True)
INT8_NARROW = IntegerFormat(8, signed=True, narrow_range=True)
UINT8 = IntegerFormat(8, signed=False)
INT16 = IntegerFormat(16, signed=True)
UINT16 = IntegerFormat(16, signed=False)

BY_NAME: dict[str, IntegerFormat] = {item.name: item for item in (INT8, UINT8, INT16, UINT16)}
