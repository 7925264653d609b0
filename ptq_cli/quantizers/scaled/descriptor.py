"""What a quantizer shall be: bits, axis, range, and how the range comes about."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ptq_cli.core.errors import QuantizerTypeError, QuantizerValueError

E4M3 = (4, 3)  # ``num_bits`` of a float8 with 4 bits of exponent and 3 of mantissa.
Bits = int | tuple[int, int]
_Axis = int | tuple[int, ...] | None
AmaxArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class ScaledQuantDescriptor:
    """Describes a scaled quantizer; immutable.

    Attributes:
        num_bits: of the integers; ``(4, 3)`` for the float8 format E4M3. The quantizer takes 2 to 16.
        name: of what is quantized, for messages.
        fake_quant: give the values that the integers stand for, not the integers.
        axis: the axis, or axes, along which each index has an amax of its own; None for one amax.
        amax: a fixed one, a float or (nested) list or array of floats; kept as a read-only float32 array.
            None: it is calibrated, or taken from each tensor.
        learn_amax: amax is a parameter with a gradient; only for one amax.
        scale_amax: factor on amax whenever it is used.
        calib_method: the collector, ``"max"`` or ``"histogram"``; looked up when calibration starts.
        unsigned: the integers start at 0.
        narrow_range: leave out the most negative integer.

    Raises: QuantizerTypeError: a field has another type than it takes, or learn_amax is asked for with an
        axis. QuantizerValueError: num_bits is negative.

    Source: NVIDIA pytorch-quantization 2.2.1, ``tensor_quant.ScaledQuantDescriptor``; there the axis is kept
        too.

    Example:
        >>> print(QuantDescriptor(num_bits=4, axis=0, name="weight"))
        weight: (4bit fake axis=0)
        >>> QuantDescriptor(amax=[1.0, 2.0]) == QuantDescriptor(amax=[1.0, 2.0])
        True
        >>> QuantDescriptor(unsigned=True).to_dict()
        {'unsigned': True}
    """

    num_bits: Bits = 8
    name: str | None = None
    fake_quant: bool = True
    axis: _Axis = None
    amax: AmaxArray | float | list[Any] | None = None
    learn_amax: bool = False
    scale_amax: float | None = None
    calib_method: str = "max"
    unsigned: bool = False
    narrow_range: bool = False

    def __post_init__(self) -> None:
        _check_bits(self.num_bits)
        for field, kinds in _KINDS.items():
            value = getattr(self, field)
            if not isinstance(value, kinds):
                raise QuantizerTypeError(f"{field} of a descriptor cannot be {value!r} of {type(value)}")
        if isinstance(self.axis, tuple) and not all(isinstance(item, int) for item in self.axis):
            raise QuantizerTypeError(
                f"the axis of a descriptor must be an integer or a tuple of integers, got {self.axis}"
            )
        if self.learn_amax and self.axis is not None:
            raise QuantizerTypeError(
                f"an amax is learned for the tensor, not along an axis, got axis={self.axis}",
                hint="leave out axis, or learn_amax",
            )
        if self.amax is not None:
            object.__setattr__(self, "amax", _read_only(self.amax))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScaledQuantDescriptor):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        amax = None if self.amax is None else f" amax={np.asarray(self.amax)} full_range"
        parts = [
            f"{self.name}: " if self.name else "QuantDescriptor",
            f"({'unsigned ' if self.unsigned else ''}{self.num_bits}bit",
            f" {'fake' if self.fake_quant else 'real'}",
            f" axis={' per-tensor' if self.axis is None else self.axis}",
            amax or "",
            " learn_amax" if self.learn_amax else "",
            f" scale_amax={self.scale_amax}" if self.scale_amax is not None else "",
            ")",
        ]
        return "".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The fields that differ from the defaults, as TOML and JSON have them.

        Example:
            >>> QuantDescriptor(axis=(0, 1), amax=[[1.0], [2.5]]).to_dict()
            {'axis': [0, 1], 'amax': [[1.0], [2.5]]}
        """
        plain: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is field.default or (field.name != "amax" and value == field.default):
                continue
            if isinstance(value, np.ndarray):
                value = value.tolist()
            plain[field.name] = list(value) if isinstance(value, tuple) else value
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The descriptor that ``to_dict`` told of; missing fields have their default.

        Raises: QuantizerTypeError: there is no such field; or as the class.

        Example:
            >>> QuantDescriptor.from_dict({"num_bits": 4, "axis": [0]}).axis
            (0,)
        """
        known = [field.name for field in fields(cls)]
        unknown = [key for key in plain if key not in known]
        if unknown:
            raise QuantizerTypeError(
                f"a descriptor has no field '{unknown[0]}'", hint=f"its fields: {', '.join(known)}"
            )
        read = dict(plain)
        for key in ("axis", "num_bits"):
            if isinstance(read.get(key), list):
                read[key] = tuple(read[key])
        return cls(**read)

    def to_toml(self) -> str:
        r"""Return ``to_dict`` as TOML.

        Example:
            >>> QuantDescriptor(num_bits=4, amax=1.5).to_toml()
            'num_bits = 4\namax = 1.5\n'
        """
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """The descriptor that ``to_toml`` wrote.

        Raises: QuantizerValueError: the text is no TOML. QuantizerTypeError: as ``from_dict``.

        Example:
            >>> QuantDescriptor.from_toml("unsigned = true").unsigned
            True
        """
        from ptq_cli.core.read_files import parse_toml

        try:
            plain = parse_toml(text)
        except ValueError as error:
            raise QuantizerValueError(f"the text of a descriptor is not TOML: {error}") from error
        return cls.from_dict(plain)

    def _key(self) -> tuple[object, ...]:
        amax = None if self.amax is None else (np.shape(self.amax), np.asarray(self.amax).tobytes())
        return (*(getattr(self, field.name) for field in fields(self) if field.name != "amax"), amax)


QuantDescriptor = ScaledQuantDescriptor
_NONE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    "name": (str, _NONE),
    "fake_quant": (bool,),
    "axis": (int, tuple, _NONE),
    "amax": (float, list, np.ndarray, _NONE),
    "learn_amax": (bool,),
    "scale_amax": (float, _NONE),
    "calib_method": (str,),
    "unsigned": (bool,),
    "narrow_range": (bool,),
}


def _check_bits(num_bits: object) -> None:
    if isinstance(num_bits, int):
        if num_bits < 0:
            raise QuantizerValueError(f"num_bits must not be negative, got {num_bits}")
    elif num_bits != E4M3 or not isinstance(num_bits, tuple):
        raise QuantizerTypeError(
            f"num_bits must be an integer, or (4, 3) for the float8 format E4M3, got {num_bits!r}"
        )


def _read_only(amax: object) -> AmaxArray:
    try:
        # A copy: what the caller does with theirs must not reach the descriptor.
        array = np.array(amax, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise QuantizerTypeError(f"amax of a descriptor cannot be read as floats: {error}") from error
    array.setflags(write=False)
    return array


# The descriptors that nearly every model needs, by NVIDIA's names.
#
# The weights of a transposed convolution have their output channels on axis 1.
#
# Source:
#     NVIDIA pytorch-quantization 2.2.1, ``tensor_quant``.
#
# Example:
#     >>> QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL.axis
#     1
QUANT_DESC_8BIT_PER_TENSOR = QuantDescriptor(num_bits=8)
QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR = QuantDescriptor(num_bits=8, unsigned=True)
QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=0)
QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=0)
QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=0)
QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW = QuantDescriptor(num_bits=8, axis=0)
QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=1)
QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=1)
QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=1)
