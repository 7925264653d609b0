"""Scales of float16: rounded before anything is quantized with them, as the runtime will read them."""

from dataclasses import dataclass, replace

import numpy as np

from ptq_cli.core.numbers.arithmetic import FloatArray, QuantParameters
from ptq_cli.core.numbers.formats import FLOAT4_E2M1, FloatFormat
from ptq_cli.models.narrow_floats import to_half
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.weights.weight_quantizer import StoredWeight, WeightChoice, WeightQuantizer

SMALLEST_NORMAL = np.float32(2.0**-14)
"""Of float16."""


def with_half_scale(parameters: QuantParameters) -> QuantParameters:
    """Return parameters whose scale is a float16.

    Edge case:
        The scale of a float format is at least the smallest normal float16: its values then only lie in lower
        binades, which costs nothing. That of integers may be subnormal.

    Example:
        >>> from ptq_cli.core.numbers.formats import FLOAT8_E4M3FN, INT8
        >>> tiny = QuantParameters(np.float32(1e-6), np.int64(0), INT8)
        >>> float(with_half_scale(tiny).scale)
        1.0132789611816406e-06
        >>> float(with_half_scale(replace(tiny, format=FLOAT8_E4M3FN)).scale)
        6.103515625e-05
    """
    if parameters.format == FLOAT4_E2M1:
        return parameters  # Its scales are E4M3 and one float32.
    scale = np.asarray(to_half(parameters.scale).astype(np.float32))
    if isinstance(parameters.format, FloatFormat):
        scale = np.maximum(scale, SMALLEST_NORMAL)
    return replace(parameters, scale=np.asarray(scale, np.float32))


@dataclass(frozen=True)
class HalfScaleQuantizer:
    """A quantizer of weights whose scales are float16.

    Attributes:
        inner: decides everything else.
    """

    inner: WeightQuantizer

    def choose(self, weight: FloatArray, site: WeightSite) -> WeightChoice:
        """Return what the inner one chooses, with scales of float16."""
        choice = self.inner.choose(weight, site)
        if choice.parameters is None:
            return choice
        return replace(choice, parameters=with_half_scale(choice.parameters))

    def fit(self, parameters: QuantParameters) -> QuantParameters:
        """Return what the inner one fits, with scales of float16."""
        return with_half_scale(self.inner.fit(parameters))

    def store(self, weight: FloatArray, site: WeightSite, parameters: QuantParameters | None) -> StoredWeight:
        """Return the weight as the inner one stores it."""
        return self.inner.store(weight, site, parameters)
