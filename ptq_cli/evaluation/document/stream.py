"""What a report holds of a stream: errors by step, and how much worse the end is than the beginning."""

from dataclasses import dataclass, field
from typing import Annotated

from ptq_cli.core.documents import AtLeast
from ptq_cli.evaluation.document.measurement import Measurement, Unit
from ptq_cli.evaluation.interval import Interval

Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, kw_only=True)
class StepErrors:
    """What was measured at neighboring steps of all recordings that have them."""

    step: Annotated[Count, "The first of the steps, counted from 0."]
    steps: Annotated[Annotated[int, AtLeast(1)], "How many there are."]
    samples: Annotated[Count, "How many steps of recordings were seen there."]
    free: Annotated[dict[str, float], "Of the quantized model on its own states, by metric."]
    forced: Annotated[dict[str, float], "Of the quantized model on the float model's states."]
    of_float: Annotated[dict[str, float], "Of the float model, for metrics with labels."] = field(
        default_factory=dict
    )


@dataclass(frozen=True, kw_only=True)
class StepDrift:
    """How much worse a metric is in the last tenth of each recording than in the first."""

    metric: Annotated[str, "Its name."]
    unit: Annotated[Unit, "Of the values."]
    first: Annotated[float, "In the first tenth: the value, or the drop of a metric with labels."]
    last: Annotated[float, "In the last tenth."]
    loss: Annotated[float, "How much worse the last tenth is."]
    forced_loss: Annotated[float, "The same on the float model's states."]
    interval: Annotated[
        Interval | None, "Of loss, from resampled recordings; None if there are too few of them."
    ] = None


@dataclass(frozen=True, kw_only=True)
class Stream:
    """How a quantized model that reads its own states departs from the float model."""

    carried: Annotated[dict[str, str], "The input that each output is at the next step."]
    recordings: Annotated[Count, "How many were run."]
    longest: Annotated[Count, "Steps of the longest."]
    forced: Annotated[
        tuple[Measurement, ...], "What was measured with the float model's states at each step."
    ]
    curve: Annotated[tuple[StepErrors, ...], "Errors by step, at most a hundred points."]
    worst_step: Annotated[Count, "Where the SQNR of the first output is lowest, on its own states."]
    drifts: Annotated[tuple[StepDrift, ...], "How much worse the end of a recording is than its beginning."]
