"""Measurement of a metric in a report: values, intervals, flips and hits, errors by step, continuations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from ptq_cli.core.documents import AtLeast, Matches
from ptq_cli.core.errors import ReportError
from ptq_cli.evaluation.interval import TOLERANCE, Flips, Interval

Unit = Literal["share", "decibel", "number"]
# Which samples are right, see ``ptq_cli.evaluation.document.measurement``.
Hits = Annotated[str, Matches("[0-9a-f]+", "hits in hexadecimal")]


@dataclass(frozen=True, kw_only=True)
class ClassValue:
    """How many of one class's samples are right."""

    DERIVED: ClassVar[tuple[str, ...]] = ("drop",)

    label: Annotated[int, "The class."]
    name: Annotated[str, "What the data call it; empty if they do not say."]
    float_value: Annotated[float, "The float model's share of the class's samples, 0 to 1."]
    quantized_value: Annotated[float, "The quantized model's."]
    flips: Annotated[Flips, "Which of the class's samples make the drop."]
    drop_interval: Annotated[Interval | None, "Of drop."] = None

    @property
    def drop(self) -> float:
        """How much worse the quantized model is on this class."""
        return self.float_value - self.quantized_value


@dataclass(frozen=True)
class Channel:
    """One index along an axis of an output.

    Example:
        >>> str(Channel(1, 3))
        'channel 3 of axis 1'
    """

    axis: Annotated[int, "Of the output, as the model has it."]
    index: Annotated[int, "Counted from 0."]

    def __str__(self) -> str:
        return f"channel {self.index} of axis {self.axis}"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one metric measured.

    A metric with labels is measured on both models and so has a drop. A comparison, such as ``sqnr_db``,
    has one value: how near the quantized model's outputs are to the float model's.
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("drop", "ratio")

    name: Annotated[str, "The metric; sqnr_db[logits] where it is not about the first output."]
    unit: Annotated[Unit, '"share" of samples from 0 to 1, "decibel", or a bare "number".']
    needs_labels: Annotated[bool, "Whether labels were needed."]
    higher_is_better: Annotated[bool, "False for errors."]
    quantized_value: Annotated[float, "The quantized model's value; a comparison has only this one."]
    float_value: Annotated[float | None, "The float model's value, None for a comparison."] = None
    quantized_interval: Annotated[
        Interval | None, "Of quantized_value; None if samples cannot tell, as for a largest error."
    ] = None
    drop_interval: Annotated[Interval | None, "Of drop, from the paired samples; None for a comparison."] = (
        None
    )
    flips: Annotated[Flips | None, "Which samples make the drop, where each sample is right or wrong."] = None
    quantized_hits: Annotated[
        Hits | None, "The samples that the quantized model has right, or agrees on; they pair two reports."
    ] = None
    float_hits: Annotated[
        Hits | None, "The samples that the float model has right; None for a comparison."
    ] = None
    output: Annotated[
        str | None, "The output that was judged; None in a report of an earlier format version."
    ] = None
    computed_by: Annotated[
        str | None, "The class or function of the user or of a plug-in; None for a metric of ptq."
    ] = None
    arguments: Annotated[dict[str, str], "What it was given, each as JSON."] = field(default_factory=dict)
    no_interval: Annotated[
        str, "Why there is no drop_interval though there is a drop; empty if there is one."
    ] = ""
    by_class: Annotated[
        tuple[ClassValue, ...], "Each class of a metric that is a mean over classes of shares of samples."
    ] = ()
    channel: Annotated[
        Channel | None, "The channel that a comparison is about; None if it is about all of the output."
    ] = None
    ratio_interval: Annotated[
        Interval | None, "Of ratio, from the paired samples; None for a metric that is better when higher."
    ] = None

    @property
    def drop(self) -> float | None:
        """How much worse the quantized model is, in the metric's unit; None for a comparison."""
        if self.float_value is None:
            return None
        change = self.float_value - self.quantized_value
        return change if self.higher_is_better else 0.0 - change  # not -0.0

    @property
    def ratio(self) -> float | None:
        """The quantized model's value over the float model's, of a metric that is better when lower.

        None for other metrics, and where the float model's value is not above 0.
        """
        if self.float_value is None or self.higher_is_better or not self.float_value > 0:
            return None
        return self.quantized_value / self.float_value


SAMPLES_A_DIGIT = 4


def hits_to_text(hits: Sequence[bool]) -> str:
    """Hits in hexadecimal: four samples a digit, the first in the highest bit, zeros at the end.

    Shapes: hits [N], N at least 1; the text has N / 4 digits, rounded up.
    Edge case: 50,000 samples take 12.5 kB.
    """
    digits = -(-len(hits) // SAMPLES_A_DIGIT)
    bits = "".join("1" if hit else "0" for hit in hits).ljust(digits * SAMPLES_A_DIGIT, "0")
    return f"{int(bits, 2):0{digits}x}"


def require_hits(text: str, samples: int, share: float, where: str) -> None:
    """Refuse hits that are not those of so many samples, or that make another share."""
    digits = -(-samples // SAMPLES_A_DIGIT)
    spare = digits * SAMPLES_A_DIGIT - samples
    bits = int(text, 16)
    if len(text) != digits or bits % 2**spare or abs(bits.bit_count() / samples - share) > 1e-9:
        raise ReportError(
            f"'{where}' does not fit the report's samples and value", hint="run ptq evaluate again"
        )


def flips_between(before: str, after: str, samples: int) -> Flips:
    """Flips from one model's hits to another's on the same samples.

    Shapes: both texts are of ``samples`` hits.
    Units: samples.
    Edge case: Equal texts have no flips.
    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions or
    percentages".
    """
    old, new = int(before, 16), int(after, 16)
    return Flips.counted(samples, (old & ~new).bit_count(), (new & ~old).bit_count())


def require_consistent(metrics: Sequence[Measurement], samples: int) -> None:
    """Refuse measurements whose intervals, flips and hits contradict their values."""
    for index, measurement in enumerate(metrics):
        where = f"metrics[{index}]"
        _require_intervals(measurement, where)
        _require_flips(measurement, samples, where)
        _require_classes(measurement, where)
        if measurement.quantized_hits is not None:
            require_hits(
                measurement.quantized_hits, samples, measurement.quantized_value, f"{where}.quantized_hits"
            )
        if measurement.float_hits is not None and measurement.float_value is not None:
            require_hits(measurement.float_hits, samples, measurement.float_value, f"{where}.float_hits")


def _require_intervals(measurement: Measurement, where: str) -> None:
    intervals = {
        "quantized_interval": measurement.quantized_interval,
        "drop_interval": measurement.drop_interval,
        "ratio_interval": measurement.ratio_interval,
    }
    for name, interval in intervals.items():
        # Not `high < low`, which NaN would pass.
        if interval is not None and not interval.low <= interval.high:
            raise _contradiction(f"{where}.{name}", f"ends at {interval.high}, below its {interval.low}")


def _require_flips(measurement: Measurement, samples: int, where: str) -> None:
    flips = measurement.flips
    if flips is None:
        return
    if flips.samples != samples:
        raise _contradiction(f"{where}.flips.samples", f"is {flips.samples}, the report's are {samples}")
    if flips.lost + flips.gained > samples:
        raise _contradiction(f"{where}.flips", f"counts more than the {samples} samples")
    if measurement.drop is None or abs(measurement.drop - flips.drop) > TOLERANCE:
        raise _contradiction(
            f"{where}.flips", f"makes a drop of {flips.drop}, the report's is {measurement.drop}"
        )


def _require_classes(measurement: Measurement, where: str) -> None:
    for index, found in enumerate(measurement.by_class):
        if abs(found.drop - found.flips.drop) > TOLERANCE:
            raise _contradiction(
                f"{where}.by_class[{index}].flips",
                f"makes a drop of {found.flips.drop}, its own is {found.drop}",
            )


def _contradiction(where: str, what: str) -> ReportError:
    return ReportError(f"'{where}' {what}", hint="run ptq evaluate again")


@dataclass(frozen=True)
class AccuracyLevel:
    """A level of ONNX Runtime's MatMulNBits: 0 computes in float, 4 rounds activations to 8 bits by block."""

    level: Annotated[Annotated[int, AtLeast(0)], "0 to 4."]
    reported: Annotated[bool, "The metrics of the report were measured at this level."]
    values: Annotated[dict[str, float], "Of the quantized model, by metric."]


_Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, kw_only=True)
class StepErrors:
    """What was measured at neighboring steps of all recordings that have them."""

    step: Annotated[_Count, "The first of the steps, counted from 0."]
    steps: Annotated[Annotated[int, AtLeast(1)], "How many there are."]
    samples: Annotated[_Count, "How many steps of recordings were seen there."]
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
    recordings: Annotated[_Count, "How many were run."]
    longest: Annotated[_Count, "Steps of the longest."]
    forced: Annotated[
        tuple[Measurement, ...], "What was measured with the float model's states at each step."
    ]
    curve: Annotated[tuple[StepErrors, ...], "Errors by step, at most a hundred points."]
    worst_step: Annotated[_Count, "Where the SQNR of the first output is lowest, on its own states."]
    drifts: Annotated[tuple[StepDrift, ...], "How much worse the end of a recording is than its beginning."]


# The metric: the share of equal tokens. It is measured where prompts are continued.
GENERATED = "generated_equal"


@dataclass(frozen=True, kw_only=True)
class Example:
    """One prompt as both models continue it."""

    prompt: Annotated[str, "Its name in the data."]
    of_float: Annotated[tuple[int, ...], "Tokens of the float model."]
    quantized: Annotated[tuple[int, ...], "Tokens of the quantized model."]
    float_text: Annotated[str | None, "What the tokenizer makes of them; None without one."] = None
    quantized_text: Annotated[str | None, "The same of the quantized model's."] = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How far a quantized model writes what the float model writes, each after its own tokens."""

    prompts: Annotated[_Count, "How many were continued."]
    tokens: Annotated[Annotated[int, AtLeast(1)], "By how many tokens each."]
    unchanged: Annotated[_Count, "Prompts whose tokens are all equal."]
    median_equal: Annotated[
        float, "Tokens before the first difference, median of the prompts; all tokens where there is none."
    ]
    first_differences: Annotated[
        tuple[int | None, ...],
        "The first token that differs, counted from 0, of the first thousand prompts; None if all are equal.",
    ]
    examples: Annotated[tuple[Example, ...], "The first three prompts with a difference, if there is one."]
