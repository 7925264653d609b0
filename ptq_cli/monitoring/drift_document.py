"""What ``drift.json`` holds: new data beside those of a calibration, tensor by tensor."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ptq_cli.collectors.tensor_statistics import NonFinite
from ptq_cli.core.documents import FileFormat
from ptq_cli.evaluation.interval import Interval

Verdict = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Movement:
    """How far the histogram of a tensor lies from the calibration's."""

    DERIVED: ClassVar[tuple[str, ...]] = ("moved",)

    distance: Annotated[
        float, "Wasserstein distance of order 1, in steps of 8 bits: 1/256 of the quantizer's range."
    ]
    interval: Annotated[Interval | None, "Of the distance; null if there are too few blocks of samples."]
    chance: Annotated[
        float | None,
        "The distance that chance explains, for all tensors at once but in one of 1,000 cases; null if there "
        "are too few blocks of samples.",
    ]
    least: Annotated[float, "The smallest distance that counts, however surely it was measured."]

    @property
    def moved(self) -> bool:
        """Whether it lies further than chance explains, and far enough to count."""
        return self.chance is not None and self.distance > max(self.chance, self.least)


@dataclass(frozen=True, kw_only=True)
class TensorDrift:
    """A quantized tensor, with new values."""

    name: Annotated[str, "The tensor's name."]
    format: Annotated[str, "What it is quantized to."]
    range_low: Annotated[float, "The lower end of the quantizer's range: values below are clipped."]
    range_high: Annotated[float, "The upper end."]
    low: Annotated[float, "The smallest finite new value."]
    high: Annotated[float, "The largest finite new value."]
    calibration_low: Annotated[float, "The smallest finite value of the calibration."]
    calibration_high: Annotated[float, "The largest finite value of the calibration."]
    clipped: Annotated[float, "Share of the new values that is clipped, 0 to 1."]
    clipped_interval: Annotated[Interval | None, "Of that share; null for fewer than two blocks of samples."]
    calibration_clipped: Annotated[
        float | None, "Share of the calibration's values that is clipped; null if only ranges were kept."
    ]
    sqnr_db: Annotated[
        float | None,
        "SQNR that rounding and clipping alone lead to expect of the new values, decibels; null for a float "
        "format.",
    ]
    calibration_sqnr_db: Annotated[
        float | None, "The same of the calibration's values; null also if only ranges were kept."
    ]
    nonfinite: Annotated[NonFinite, "How many new values were not finite; the rest leaves them out."]
    movement: Annotated[Movement | None, "How far it has moved; null if only ranges were kept."]


@dataclass(frozen=True, kw_only=True)
class ExpectedSqnr:
    """The SQNR that the noise of all quantized tensors leads to expect of the model's output.

    Their ratios of noise to signal add up (Lin et al. 2016). Weights are left out: data do not change them.
    """

    sqnr_db: Annotated[float, "With the new values, decibels; inf without any noise."]
    interval: Annotated[Interval | None, "Of it; null for fewer than two blocks of samples."]
    calibration_db: Annotated[float | None, "With the calibration's; null if only ranges were kept."]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """New data beside those of a calibration."""

    FORMAT: ClassVar[FileFormat] = FileFormat(name="ptq.drift", version=1, noun="drift")
    DERIVED: ClassVar[tuple[str, ...]] = ("verdict",)

    faults: Annotated[
        tuple[str, ...], "Why the verdict is fail: limits that are exceeded, tensors that moved."
    ]
    doubt: Annotated[str, "Why nothing is decided; empty if something is."]
    source: Annotated[str, "The new data, as they were named."]
    samples: Annotated[int, "How many new samples were seen."]
    blocks: Annotated[int, "Blocks of whole samples that were drawn for the intervals."]
    calibration_samples: Annotated[int, "How many samples the calibration has seen."]
    inputs_only: Annotated[bool, "Whether only inputs were read, and no model was run."]
    exported: Annotated[
        bool,
        "Whether the ranges were read from the run's quantized model; if false, they were decided.",
    ]
    max_clipped: Annotated[float | None, "Limit of the share that is clipped of any tensor; null if none."]
    min_expected_sqnr: Annotated[float | None, "Limit of the expected SQNR, decibels; null if none."]
    expected: Annotated[ExpectedSqnr | None, "The expected SQNR; null if no tensor becomes integers."]
    tensors: Annotated[tuple[TensorDrift, ...], "Those that moved most come first."]

    @property
    def verdict(self) -> Verdict:
        """Whether the new data are as those of the calibration, or keep the limits where there are any."""
        if self.faults:
            return "fail"
        return "undecided" if self.doubt else "pass"

    @property
    def moved(self) -> tuple[TensorDrift, ...]:
        """The tensors that moved further than chance explains."""
        return tuple(item for item in self.tensors if item.movement is not None and item.movement.moved)
