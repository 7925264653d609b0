"""What ``ptq repair`` changed in a file, and what that did to it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ptq_cli.evaluation.document.report_document import Saturation

WeightsFrom = Literal["file", "float model"]


@dataclass(frozen=True, kw_only=True)
class ChangedWeight:
    """A weight that was changed."""

    name: Annotated[str, "Its name in the file."]
    layers: Annotated[tuple[str, ...], "The layers that read it."]
    rounded_from: Annotated[
        WeightsFrom, "Whether its integers were rounded from the float model's weight or from the file's."
    ]
    largest_change: Annotated[float, "The largest change of an element, in steps of the scale it had."]
    largest_factor: Annotated[float, "How many times as large the scale became that grew most."]


@dataclass(frozen=True, kw_only=True)
class RepairComparison:
    """SQNR of the file before and after on samples; of the worst output."""

    data: Annotated[str, "Where the samples are from."]
    samples: Annotated[int, "How many samples."]
    reference: Annotated[
        Literal["float model", "file with exact sums"], "What the outputs were compared with."
    ]
    saturates_here: Annotated[bool, "Whether sums of two products saturate on this processor."]
    before_db: Annotated[float, "The file on this processor, in dB."]
    exact_db: Annotated[float | None, "The file with exact sums; None if it is the reference."]
    after_db: Annotated[float, "The repaired file on this processor."]
    biases: Annotated[int, "How many biases were corrected on these samples."]


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What ``ptq repair`` found and did."""

    DERIVED: ClassVar[tuple[str, ...]] = ("verdict",)

    model: Annotated[str, "The file."]
    output: Annotated[str | None, "The file that was written; None with --check."]
    before: Annotated[Saturation, "Which layers of the file can saturate on x86 processors without VNNI."]
    after: Annotated[Saturation | None, "Which layers of the written file can; None with --check."]
    changed: Annotated[tuple[ChangedWeight, ...], "The weights that were changed."]
    copied: Annotated[
        tuple[str, ...],
        "Constants that something else reads, too, which keeps them: the layers got new ones.",
    ]
    comparison: Annotated[RepairComparison | None, "BatchOutputs before and after; None without data."]

    @property
    def verdict(self) -> Literal["exact", "repaired", "needs repair"]:
        """``"exact"`` if nothing had to be repaired."""
        if not self.before.saturating:
            return "exact"
        return "repaired" if self.output is not None else "needs repair"
