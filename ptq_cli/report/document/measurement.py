"""One measured number, with what a reader must know to judge it."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from ptq_cli.core.documents.json_values import Matches
from ptq_cli.report.intervals.flips import Flips
from ptq_cli.report.intervals.interval import Interval

Unit = Literal["share", "decibel", "number"]
Hits = Annotated[str, Matches("[0-9a-f]+", "hits in hexadecimal")]
"""Which samples are right, see ``ptq_cli.report.document.hits``."""


@dataclass(frozen=True, kw_only=True)
class ClassValue:
    """How many of one class's samples are right.

    Attributes:
        label: the class.
        name: what the data call it; empty if they do not say.
        float_value: the float model's share of the class's samples, 0 to 1.
        quantized_value: the quantized model's.
        flips: which of the class's samples make the drop.
        drop_interval: of ``drop``.

    Example:
        >>> ClassValue(
        ...     label=3,
        ...     name="cat",
        ...     float_value=0.75,
        ...     quantized_value=0.5,
        ...     flips=Flips.counted(4, lost=1, gained=0),
        ... ).drop
        0.25
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("drop",)

    label: int
    name: str
    float_value: float
    quantized_value: float
    flips: Flips
    drop_interval: Interval | None = None

    @property
    def drop(self) -> float:
        """How much worse the quantized model is on this class."""
        return self.float_value - self.quantized_value


@dataclass(frozen=True)
class Channel:
    """One index along an axis of an output.

    Attributes:
        axis: of the output, as the model has it.
        index: counted from 0.

    Example:
        >>> str(Channel(1, 3))
        'channel 3 of axis 1'
    """

    axis: int
    index: int

    def __str__(self) -> str:
        return f"channel {self.index} of axis {self.axis}"


@dataclass(frozen=True, kw_only=True)
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
        quantized_interval: of ``quantized_value``; None if samples cannot tell, as for a largest error.
        drop_interval: of ``drop``, from the paired samples; None for a comparison.
        flips: which samples make the drop, where each sample is right or wrong.
        quantized_hits: the samples that the quantized model has right, or agrees on; they pair two reports.
        float_hits: the samples that the float model has right; None for a comparison.
        output: the output that was judged; None in a report of an earlier format version.
        pytorch_value: the PyTorch model's value; None if it did not run.
        computed_by: the class or function of the user or of a plug-in; None for a metric of ptq.
        arguments: what it was given, each as JSON.
        no_interval: why there is no ``drop_interval`` though there is a drop; empty if there is one.
        by_class: each class of a metric that is a mean over classes of shares of samples.
        channel: the channel that a comparison is about; None if it is about all of the output.
        ratio_interval: of ``ratio``, from the paired samples; None for a metric that is better when higher.

    Example:
        >>> top1 = Measurement(
        ...     name="top1",
        ...     unit="share",
        ...     needs_labels=True,
        ...     higher_is_better=True,
        ...     quantized_value=0.75,
        ...     float_value=0.8125,
        ... )
        >>> top1.drop
        0.0625
        >>> print(
        ...     Measurement(
        ...         name="cosine",
        ...         unit="number",
        ...         needs_labels=False,
        ...         higher_is_better=True,
        ...         quantized_value=0.99,
        ...     ).drop
        ... )
        None
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("drop", "ratio")

    name: str
    unit: Unit
    needs_labels: bool
    higher_is_better: bool
    quantized_value: float
    float_value: float | None = None
    quantized_interval: Interval | None = None
    drop_interval: Interval | None = None
    flips: Flips | None = None
    quantized_hits: Hits | None = None
    float_hits: Hits | None = None
    output: str | None = None
    pytorch_value: float | None = None
    computed_by: str | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    no_interval: str = ""
    by_class: tuple[ClassValue, ...] = ()
    channel: Channel | None = None
    ratio_interval: Interval | None = None

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
