"""What the metric that the user limits says of a quantized form, beside its SQNR."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from ptq_cli.core.tensors import Array


@dataclass(frozen=True, kw_only=True)
class MetricGain:
    """How much better a metric is of one quantized form than of another, on the same samples."""

    name: Annotated[str, "The metric."]
    unit: Annotated[Literal["share", "decibel", "number"], "Of the values; a share is from 0 to 1."]
    before: Annotated[float, "The quantized model's value without the rung."]
    after: Annotated[float, "With it."]
    gain: Annotated[tuple[float, float], "The ends of the 95 % interval of the gain; above 0 is better."]

    @property
    def is_sure(self) -> bool:
        """Whether the interval tells a gain from a loss."""
        return self.gain[0] > 0.0 or self.gain[1] < 0.0

    def values(self) -> dict[str, object]:
        """Return it for the metadata of a model, in so many digits as no number of threads changes."""
        before, after, low, high = (float(f"{x:.4g}") for x in (self.before, self.after, *self.gain))
        return {"name": self.name, "values": [before, after], "gain": [low, high]}


class MetricWatch(Protocol):
    """Follows a metric over the outputs of one quantized form."""

    def add(self, outputs: Sequence[Array]) -> None:
        """Take the outputs of the next piece to decide by."""

    def gain_over(self, other: Any) -> MetricGain | None:
        """Return how much better this form is than another one's watch; None if samples cannot tell."""
