"""One measured number, with what a reader must know to judge it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

Unit = Literal["share", "decibel", "number"]


@dataclass(frozen=True)
class Measurement:
    """What one metric measured.

    A metric with labels is measured on both models and so has a drop. A comparison, such as ``sqnr_db``,
    has one value: how near the quantized model's outputs are to the float model's.

    Attributes:
        name: the metric; ``sqnr_db[logits]`` where it is not about the first output.
        unit: ``"share"`` of samples from 0 to 1, ``"decibel"``, or a bare ``"number"``.
        needs_labels: whether labels were needed.
        higher_is_better: false for errors.
        quantized_value: the quantized model's value; a comparison has only this one.
        float_value: the float model's value, None for a comparison.

    Example:
        >>> top1 = Measurement("top1", "share", True, True, quantized_value=0.75, float_value=0.8125)
        >>> top1.drop
        0.0625
        >>> print(Measurement("cosine", "number", False, True, quantized_value=0.99).drop)
        None
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("drop",)

    name: str
    unit: Unit
    needs_labels: bool
    higher_is_better: bool
    quantized_value: float
    float_value: float | None = None

    @property
    def drop(self) -> float | None:
        """``float_value - quantized_value``, in the metric's unit; None for a comparison."""
        return None if self.float_value is None else self.float_value - self.quantized_value
