"""What ``quantize``, ``prepare`` and ``verify`` print with ``--json`` if MODEL is a folder."""

from typing import Literal, TypedDict

from ptq_cli.cli.shown.documents.calibration_documents import CalibrationDocument
from ptq_cli.cli.shown.documents.export_documents import ExportedModelDocument, PrepareDocument
from ptq_cli.cli.shown.documents.file_documents import ReportFile
from ptq_cli.cli.shown.documents.inspection_documents import VerifyDocument
from ptq_cli.core.documents.attribute_texts import described_with
from ptq_cli.report.document.gate_result import Verdict
from ptq_cli.report.document.times import Times


class FolderEntryDocument(TypedDict):
    """A model of a folder.

    Attributes:
        file: path of the float model in the folder.
        output: the quantized model.
        run: its run directory; null if it was copied.
        float_bytes, bytes: sizes of both, each with the constants that it shares with others.
        layers: how many layers could be quantized; null if the model was copied.
        integer_layers: how many of them compute in integers.
        quantized_weights: how many layers have quantized weights.
        weights_decided_before: how many weights were decided with an earlier model of the folder.
        copied_because: why the model was copied as it is; null if it was quantized.
        verdict: verdict of its evaluation; null if it was not evaluated.
    """

    file: str
    output: str
    run: str | None
    float_bytes: int
    bytes: int
    layers: int | None
    integer_layers: int | None
    quantized_weights: int | None
    weights_decided_before: int | None
    copied_because: str | None
    verdict: Verdict | None


@described_with(FolderEntryDocument)
class QuantizedEntryDocument(FolderEntryDocument):
    """A model of a folder, with all that was done to it.

    Attributes:
        calibration: as from ``ptq calibrate``; null if it was copied.
        export: as from ``ptq export``, without the format.
        report: as from ``ptq evaluate``; null if it was not evaluated.
        times: how long the models take.
    """

    calibration: CalibrationDocument | None
    export: ExportedModelDocument | None
    report: ReportFile | None
    times: Times | None


class FolderDocument(TypedDict):
    """What ``ptq quantize`` prints for a folder.

    Attributes:
        format_version: version of ``folder.json``, which has the same keys.
        folder: the folder with the float models.
        output: the folder with the quantized models.
        suffix: suffix of the names of quantized files.
        float_bytes, bytes: of all models; constants that files share count once.
        shared_constants: how many constants several quantized models read from one file.
        saved_bytes: how many bytes copies of them would take.
        files: the models.
        carried: configurations and tokenizers that were copied.
        left_out: files that were quantized already.
    """

    format_version: Literal[1]
    folder: str
    output: str
    suffix: str
    float_bytes: int
    bytes: int
    shared_constants: int
    saved_bytes: int
    files: list[QuantizedEntryDocument]
    carried: list[str]
    left_out: list[str]


class PreparedFolderDocument(TypedDict):
    """What ``ptq prepare`` prints for a folder.

    Attributes:
        files: as for a single model, of each.
    """

    files: list[PrepareDocument]


class VerifiedFolderDocument(TypedDict):
    """What ``ptq verify`` prints for a folder.

    Attributes:
        files: as for a single model, of each.
    """

    files: list[VerifyDocument]
