"""What the page shows that ``report.json`` does not hold: the samples that changed. Format version 1.

A file of its own, ``details.json`` in the run directory, so that the page can be made again without running a
model: it names samples, and may hold pictures of them, which a report for others need not. The dataclasses
are the format: ``docs/details.schema.json`` is made from them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ptq_cli.core.decoding import AtLeast, Matches, decode, encode, strict_json
from ptq_cli.core.errors import ReportError
from ptq_cli.core.read_files import read_file
from ptq_cli.report.document.gate_result import Timestamp
from ptq_cli.report.document.report_document import Sha256

FORMAT = "ptq.details"
FORMAT_VERSION = 1
HINT = "run ptq evaluate again"

Count = Annotated[int, AtLeast(0)]
Picture = Annotated[str, Matches("[A-Za-z0-9+/]*=*", "a picture in base64")]


@dataclass(frozen=True, kw_only=True)
class ChangedSample:
    """A sample that the quantized model puts into another class than the float model.

    Attributes:
        index: its place in the evaluation set.
        name: what the data call it.
        label: the right class; None without labels.
        float_class: the float model's.
        quantized_class: the quantized model's.
        picture: a small JPEG in base64; empty if none was asked for or the sample is no picture.

    Example:
        >>> ChangedSample(index=3, name="cat/7.png", label=0, float_class=0, quantized_class=2).effect
        'lost'
    """

    index: Count
    name: str
    label: Count | None
    float_class: Count
    quantized_class: Count
    picture: Picture = ""

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
    """The samples that changed their class.

    Attributes:
        total: how many did.
        class_names: by class; empty if the data do not name them.
        samples: the first of them, in the order of the data.
    """

    total: Count
    class_names: tuple[str, ...]
    samples: tuple[ChangedSample, ...]


@dataclass(frozen=True)
class Details:
    """Everything that a page needs beside the report, the models and the calibration.

    Attributes:
        created: when the report was made that they belong to.
        quantized_sha256: of the model that was evaluated.
        notes: what running ``report.toml`` again would not reproduce.
        changes: None if the first output is not one of classes.
    """

    created: Timestamp
    quantized_sha256: Sha256
    notes: tuple[str, ...]
    changes: Changes | None


def details_to_json(details: Details) -> str:
    """Return the details as JSON: keys in a fixed order, two spaces, ASCII, a newline at the end."""
    document = {"format": FORMAT, "format_version": FORMAT_VERSION, **encode(details)}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def read_details(path: Path) -> Details:
    """Read and check details.

    Raises:
        InputFileError: the file is missing or unreadable.
        ReportError: it is damaged, holds no details, or is of another format version.
    """
    content = read_file(path, "details")
    try:
        return parse_details(content)
    except ReportError as error:
        raise ReportError(f"'{path}': {error.message}", hint=HINT) from error


def parse_details(content: bytes) -> Details:
    """Return the details that ``details_to_json`` wrote as ``content``.

    Raises:
        ReportError: it is damaged, holds no details, or is of another format version.

    Example:
        >>> parse_details(b'{"format": "ptq.details", "format_version": 2}')
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.ReportError: PTQ-REPORT-001: it has format version 2, this ptq reads 1
        hint: run ptq evaluate again
    """
    try:
        value = strict_json(content)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"it is not valid JSON: {error}", hint=HINT) from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ReportError(f'it is JSON, but has no "format": "{FORMAT}"', hint=HINT)
    version = value.get("format_version")
    if isinstance(version, bool) or version != FORMAT_VERSION:
        raise ReportError(
            f"it has format version {str(version)[:40]}, this ptq reads {FORMAT_VERSION}", hint=HINT
        )
    body: dict[str, Any] = {
        key: entry for key, entry in value.items() if key not in ("format", "format_version")
    }
    details: Details = decode(Details, body, "")
    return details
