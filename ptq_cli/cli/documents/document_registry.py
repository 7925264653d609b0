"""Which document each command prints with ``--json``, and which files have a schema of their own."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from ptq_cli.cli.documents.calibration_documents import (
    CalibrationDocument,
    CalibrationShowDocument,
    ExplanationDocument,
    MergeDocument,
    MomentsDocument,
)
from ptq_cli.cli.documents.export_documents import (
    AnalysisFile,
    BenchResultDocument,
    DetailsFile,
    ExportDocument,
    ExportedModelDocument,
    LadderFile,
    PrepareDocument,
    ProfileDocument,
    QuantizeDocument,
    ReportFile,
)
from ptq_cli.cli.documents.inspection_documents import (
    InspectDocument,
    QuantizersDocument,
    StaircaseDocument,
    VerifyDocument,
)
from ptq_cli.core.json_schema import DocumentKind, described_with
from ptq_cli.report.document.gate_result import GateResult, Times, Verdict
from ptq_cli.report.report_changes import ReportChanges
from ptq_cli.report.trade_offs import TradeOffs

# What ``evaluate``, ``merge``, ``gate``, ``tune``, ``report`` and ``recipe`` print with ``--json``.


class ReportsDocument(TypedDict):
    """What ``ptq evaluate`` prints for several models.

    Attributes:
        reports: a report for each model, in the order in which the models were named.
    """

    reports: list[ReportFile]


class EvaluationShardDocument(TypedDict):
    """What ``ptq evaluate --shard`` prints.

    Attributes:
        run: the run directory.
        file: the file with what was measured.
        samples: how many samples were run.
        shard: which part of the data this is, such as ``shard 2 of 8``.
    """

    run: str
    file: str
    samples: int
    shard: str


class GateDocument(TypedDict):
    """What ``ptq gate`` prints.

    Attributes:
        verdict: ``pass`` if every gate passed, ``fail`` if one did not, ``no gate`` without gates.
        gates: each limit, with its result.
    """

    verdict: Verdict
    gates: list[GateResult]


class TuneDocument(TypedDict):
    """What ``ptq tune`` prints.

    Attributes:
        run: the run directory.
        output: the quantized model.
        bytes, float_bytes: sizes of the quantized and of the float file. The float file is the one that was
            named, with its external data, if it is ONNX, and otherwise the prepared model.
        interrupted: whether Ctrl-C or SIGTERM ended it.
        ladder: every candidate, and which one was chosen.
        report: as from ``ptq evaluate``; null if nothing was evaluated.
    """

    run: str
    output: str
    bytes: int
    float_bytes: int
    interrupted: bool
    ladder: LadderFile
    report: ReportFile | None


class PageDocument(TypedDict):
    """What ``ptq report`` prints.

    Attributes:
        page: the file of the page.
        notes: what the page lacks, and why.
    """

    page: str
    notes: list[str]


class NewRecipeDocument(TypedDict):
    """What ``ptq recipe init`` prints.

    Attributes:
        output: the recipe that was written.
        questions: how many questions its comments have.
        unset: settings of data that quantizing the model needs and the recipe does not have.
    """

    output: str
    questions: int
    unset: list[str]


class KeyDocument(TypedDict):
    """A key of a recipe.

    Attributes:
        key: the key with its section.
        type: what it takes, in words.
        default: its value where nothing sets it; null if it then has none.
        meaning: what it does.
    """

    key: str
    type: str
    default: Any
    meaning: str


class KeysDocument(TypedDict):
    """What ``ptq recipe keys`` prints.

    Attributes:
        keys: those that the pattern matches, in the order of a recipe.
    """

    keys: list[KeyDocument]


class CheckedRecipeDocument(TypedDict):
    """A recipe that is correct.

    Attributes:
        file: the file.
        settings: its settings, by ``section.key``.
        missing: files and folders that it names and that are not there.
    """

    file: str
    settings: dict[str, Any]
    missing: list[str]


class CheckedRecipesDocument(TypedDict):
    """What ``ptq recipe check`` prints.

    Attributes:
        recipes: each recipe that was checked.
    """

    recipes: list[CheckedRecipeDocument]


# What ``quantize``, ``prepare`` and ``verify`` print with ``--json`` if MODEL is a folder.


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


TITLE = "What the commands of ptq print with --json"

FILES: Mapping[str, DocumentKind] = {
    "report.json": ReportFile,
    "analysis.json": AnalysisFile,
    "details.json": DetailsFile,
    "tune.json": LadderFile,
    "bench.json": BenchResultDocument,
}
"""By the name of the file; ``bench.json`` is what ``ptq bench --json`` prints."""

COMMANDS: Mapping[str, Sequence[DocumentKind]] = {
    "calibrate": (CalibrationDocument, MomentsDocument),
    "merge": (MergeDocument, ReportFile, ReportsDocument),
    "calibration show": (CalibrationShowDocument,),
    "explain": (ExplanationDocument,),
    "export": (ExportDocument,),
    "evaluate": (ReportFile, ReportsDocument, EvaluationShardDocument),
    "analyze": (AnalysisFile,),
    "quantize": (QuantizeDocument, FolderDocument),
    "tune": (TuneDocument,),
    "verify": (VerifyDocument, VerifiedFolderDocument),
    "bench": (BenchResultDocument,),
    "profile": (ProfileDocument,),
    "inspect": (InspectDocument,),
    "prepare": (PrepareDocument, PreparedFolderDocument),
    "recipe init": (NewRecipeDocument,),
    "recipe check": (CheckedRecipesDocument,),
    "recipe keys": (KeysDocument,),
    "gate": (GateDocument,),
    "report": (PageDocument,),
    "compare": (ReportChanges, TradeOffs),
    "quantizers": (QuantizersDocument,),
    "quantizers show": (StaircaseDocument,),
}
"""By the command's words: what it may print, the usual one first."""
