"""Number formats of quantized tensors, and how much of a tensor shares one scale."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptq_cli.core.errors import AxisError, QuantizerValueError

if TYPE_CHECKING:  # The help names formats, and NumPy would be half of its time.
    import numpy as np

MIN_BITS = 2
MAX_BITS = 16
BYTE = 8


@dataclass(frozen=True)
class IntegerFormat:
    """An integer format with ``bits`` bits.

    Attributes:
        bits: 2 to 16.
        signed: two's complement if true, otherwise from 0.
        narrow_range: the most negative value is not used, so that the range is symmetric about 0
            (-127…127 for int8). An unsigned format has no narrow range.

    Raises: QuantizerValueError: bits outside 2…16, or an unsigned format with a narrow range.

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
    def whole(self) -> "IntegerFormat":
        """The format of all bits of the type that holds the integers.

        Example:
            >>> IntegerFormat(4, signed=False).whole.name
            'uint8'
        """
        return IntegerFormat(8 * self.storage.itemsize, self.signed)

    @property
    def storage(self) -> "np.dtype[np.signedinteger] | np.dtype[np.unsignedinteger]":
        """The numpy dtype that holds the integers: 8 bits wide up to 8 bits, otherwise 16."""
        import numpy as np

        width = BYTE if self.bits <= BYTE else 16
        return np.dtype(f"{'int' if self.signed else 'uint'}{width}")


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format of few bits without infinities, as TensorRT multiplies it.

    Attributes:
        name: what ONNX calls it, in small letters.
        exponent_bits: bits of the exponent, whose bias is ``2^(exponent_bits - 1) - 1``.
        mantissa_bits: bits after the leading one, which a subnormal number does not have.
        largest: its largest value; everything beyond becomes this one.

    Example:
        >>> FLOAT8_E4M3FN.bits, FLOAT8_E4M3FN.qmax, FLOAT8_E4M3FN.smallest_exponent
        (8, 448.0, -6)
        >>> FLOAT4_E2M1.bits, FLOAT4_E2M1.qmin, FLOAT4_E2M1.storage.name
        (4, -6.0, 'float4_e2m1fn')
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: float

    @property
    def bits(self) -> int:
        """Bits per value, with the sign."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def signed(self) -> bool:
        """Every float format has negative values."""
        return True

    @property
    def qmin(self) -> float:
        """Smallest value of the format."""
        return -self.largest

    @property
    def qmax(self) -> float:
        """Largest value of the format."""
        return self.largest

    @property
    def smallest_exponent(self) -> int:
        """Exponent of the smallest normal number; the subnormal ones have its spacing."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def storage(self) -> "np.dtype[np.generic]":
        """The dtype of ml_dtypes that holds the values, a byte each."""
        import ml_dtypes  # Only what writes or reads such a file needs it.
        import numpy as np

        found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, STORED_AS[self.name]))
        return found


NumberFormat = IntegerFormat | FloatFormat  # Formats that a quantized tensor is stored in.
# Names of the float formats in ml_dtypes.
STORED_AS = {"float8e4m3fn": "float8_e4m3fn", "float4e2m1": "float4_e2m1fn"}

FLOAT8_E4M3FN = FloatFormat("float8e4m3fn", exponent_bits=4, mantissa_bits=3, largest=448.0)
FLOAT4_E2M1 = FloatFormat("float4e2m1", exponent_bits=2, mantissa_bits=1, largest=6.0)
FLOATS: dict[str, FloatFormat] = {item.name: item for item in (FLOAT8_E4M3FN, FLOAT4_E2M1)}
INT8 = IntegerFormat(8, signed=True)
INT8_NARROW = IntegerFormat(8, signed=True, narrow_range=True)
UINT8 = IntegerFormat(8, signed=False)
INT16 = IntegerFormat(16, signed=True)
UINT16 = IntegerFormat(16, signed=False)
INTEGERS: dict[str, IntegerFormat] = {item.name: item for item in (INT8, UINT8, INT16, UINT16)}
BY_NAME: dict[str, NumberFormat] = {**INTEGERS, **FLOATS}


@dataclass(frozen=True)
class PerTensor:
    """One scale for the whole tensor; the scale has shape ``()``.

    Example:
        >>> PerTensor().scale_shape((4, 3, 3, 3)), PerTensor().reduced_axes((4, 3))
        ((), (0, 1))
    """

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - one interface
        """Shape of the scale of a tensor of ``shape``: ``()``."""
        return ()

    def reduced_axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes over which a statistic is reduced: all of them."""
        return tuple(range(len(shape)))

    def broadcast_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - one interface
        """Shape that lets the scale broadcast against the tensor: ``()``."""
        return ()


class _AlongAxes:
    """One scale for each index along some axes.

    Raises: AxisError: (each method) the tensor does not have one of the axes.
    """

    axes: tuple[int, ...]

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the scale of a tensor of ``shape``: its sizes along the axes."""
        return tuple(shape[axis] for axis in self._kept(shape))

    def reduced_axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes over which a statistic is reduced: all others."""
        kept = self._kept(shape)
        return tuple(index for index in range(len(shape)) if index not in kept)

    def broadcast_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape that lets the scale broadcast against the tensor: 1 on every other axis."""
        kept = self._kept(shape)
        return tuple(size if index in kept else 1 for index, size in enumerate(shape))

    def _kept(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        rank = len(shape)
        for axis in self.axes:
            if not -rank <= axis < rank:
                raise AxisError(f"axis {axis} is outside a tensor of shape {shape}")
        return tuple(sorted(axis % rank for axis in self.axes))


@dataclass(frozen=True)
class PerAxis(_AlongAxes):
    """One scale for each index along ``axis``; the scale has shape ``(shape[axis],)``.

    | tensor            | axis | scale   | reduced over |
    |-------------------|------|---------|--------------|
    | Conv (O, I, H, W) | 0    | (O,)    | I, H, W      |
    | MatMul (K, N)     | 1    | (N,)    | K            |

    Example:
        >>> PerAxis(0).scale_shape((4, 3, 5, 5)), PerAxis(0).broadcast_shape((4, 3, 5, 5))
        ((4,), (4, 1, 1, 1))
        >>> PerAxis(-1).reduced_axes((4, 3))
        (0,)
    """

    axis: int

    @property
    def axes(self) -> tuple[int, ...]:  # type: ignore[override]
        """The one axis."""
        return (self.axis,)


@dataclass(frozen=True)
class PerAxes(_AlongAxes):
    """One scale for each index along several axes; the scale has their sizes.

    | tensor                                 | axes   | scale  | reduced over |
    |----------------------------------------|--------|--------|--------------|
    | LSTM (directions, 4 * hidden, inputs)  | (0, 1) | (D, C) | inputs       |

    Example:
        >>> both = PerAxes((0, 1))
        >>> both.scale_shape((2, 8, 3)), both.reduced_axes((2, 8, 3)), both.broadcast_shape((2, 8, 3))
        ((2, 8), (2,), (2, 8, 1))
    """

    axes: tuple[int, ...]


Granularity = PerTensor | PerAxis | PerAxes
