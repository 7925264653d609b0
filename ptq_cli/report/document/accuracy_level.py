"""What a quantized model gives at each accuracy level of the kernel that reads weights in blocks."""

from dataclasses import dataclass
from typing import Annotated

from ptq_cli.core.documents.json_values import AtLeast


@dataclass(frozen=True)
class AccuracyLevel:
    """One level of ONNX Runtime's MatMulNBits: 0 computes in float, 4 rounds activations to 8 bits by block.

    Attributes:
        level: 0 to 4.
        reported: the metrics of the report were measured at this level.
        values: of the quantized model, by metric.
    """

    level: Annotated[int, AtLeast(0)]
    reported: bool
    values: dict[str, float]
