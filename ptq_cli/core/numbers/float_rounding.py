"""Rounding to the floating-point formats of few bits, E4M3 and E2M1, in numpy.

``onnx.reference`` and ml_dtypes agree with it bit for bit; tests compare them on every float16.
"""

import numpy as np
import numpy.typing as npt

from ptq_cli.core.numbers.formats import FloatFormat


def round_to_float(x: npt.ArrayLike, format: FloatFormat) -> npt.NDArray[np.float32]:
    """Return the nearest value of a float format, as a float32.

    Shapes:
        x: any; the result has the same shape.

    Edge case:
        Of two values that are equally near, the one with an even mantissa. What is beyond the largest value,
        infinities too, becomes the largest. A value below the smallest normal number is rounded to a multiple
        of the smallest subnormal one, and keeps its sign where that is 0. NaN stays NaN.

    Source:
        Micikevicius et al. 2022, "FP8 formats for deep learning", section 3; ONNX Cast with ``saturate = 1``;
        OCP Microscaling Formats (MX) 1.0, section 5.3.3, for E2M1.

    Example:
        >>> from ptq_cli.core.numbers.formats import FLOAT4_E2M1, FLOAT8_E4M3FN
        >>> round_to_float([0.3, 17.0, 500.0, 0.0009], FLOAT8_E4M3FN).tolist()
        [0.3125, 16.0, 448.0, 0.0]
        >>> round_to_float([0.25, 0.75, 2.5, 5.0, 100.0], FLOAT4_E2M1).tolist()
        [0.0, 1.0, 2.0, 4.0, 6.0]
    """
    bounded = np.clip(np.asarray(x, np.float32), format.qmin, format.qmax)
    # frexp gives a fraction from 1/2 to 1, so that the exponent of the leading bit is one less.
    _, exponent = np.frexp(bounded)
    spacing = np.maximum(exponent - 1, format.smallest_exponent) - format.mantissa_bits
    # By a power of two, so that only rint rounds.
    rounded = np.ldexp(np.rint(np.ldexp(bounded, -spacing)), spacing)
    return np.asarray(rounded, np.float32)
