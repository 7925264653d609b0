"""A quantizer was given what it cannot work with."""

from ptq_cli.core.errors.request_errors import RecipeValueError, UsageError


class QuantizerValueError(RecipeValueError, ValueError):
    """A quantizer was given a value that it cannot work with: NaN, a negative amax, a scale of 0."""

    code = "PTQ-QUANT-001"


class QuantizerTypeError(UsageError, TypeError):
    """A quantizer was given input of the wrong kind: an integer tensor, or negative values if unsigned."""

    code = "PTQ-QUANT-002"


class QuantizerShapeError(UsageError, RuntimeError):
    """A quantizer's parameter does not fit the tensor's shape, or the tensor is empty and must not be."""

    code = "PTQ-QUANT-003"


class AxisError(QuantizerValueError, IndexError):
    """A tensor has no such axis, or the same axis is named twice."""

    code = "PTQ-QUANT-004"


class UnsupportedFormatError(UsageError, NotImplementedError):
    """A number format that no quantizer of ptq supports, such as the float8 format E5M2."""

    code = "PTQ-QUANT-005"
