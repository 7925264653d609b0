"""What the page shows that ``report.json`` does not hold: the samples that changed.

A file of its own, ``details.json`` in the run directory, so that the page can be made again without running a
model: it names samples, and may hold pictures of them, which a report for others need not. The dataclasses
are the format: ``docs/details.schema.json`` is made from them.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ptq_cli.core.documents import AtLeast, FileFormat, Matches
from ptq_cli.evaluation.document.gate_result import Timestamp
from ptq_cli.evaluation.document.report_document import Sha256

Count = Annotated[int, AtLeast(0)]
Picture = Annotated[str, Matches("[A-Za-z0-9+/]*=*", "a picture in base64")]


@dataclass(frozen=True, kw_only=True)
class ChangedSample:
    """A sample that the quantized model puts into another class than the float model."""

    index: Annotated[Count, "Its place in the evaluation set."]
    name: Annotated[str, "What the data call it."]
    label: Annotated[Count | None, "The right class; None without labels."]
    float_class: Annotated[Count, "The float model's."]
    quantized_class: Annotated[Count, "The quantized model's."]
    picture: Annotated[
        Picture, "A small JPEG in base64; empty if not requested, or if the sample is not a picture."
    ] = ""

    @property
    def effect(self) -> str:
        """``"lost"``, ``"gained"``, ``"still wrong"``, or ``"changed"`` where no label tells."""
        if self.label is None:
            return "changed"
        if self.label == self.float_class:
            return "lost"
        return "gained" if self.label == self.quantized_class else "still wrong"


@dataclass(frozen=True)
class Changes:
    """The samples that changed their class."""

    total: Annotated[Count, "How many did."]
    class_names: Annotated[tuple[str, ...], "By class; empty if the data do not name them."]
    samples: Annotated[tuple[ChangedSample, ...], "The first of them, in the order of the data."]


@dataclass(frozen=True)
class Details:
    """Everything that a page needs beside the report, the models and the calibration."""

    FORMAT: ClassVar[FileFormat] = FileFormat(name="ptq.details", version=1, noun="details")

    created: Annotated[Timestamp, "When the report was made that they belong to."]
    quantized_sha256: Annotated[Sha256, "Of the model that was evaluated."]
    notes: Annotated[tuple[str, ...], "What running report.toml again would not reproduce."]
    changes: Annotated[Changes | None, "None if the first output is not one of classes."]
