"""Which document each command prints with ``--json``, and which files have a schema of their own."""

from collections.abc import Mapping, Sequence

from ptq_cli.cli.shown.documents.calibration_documents import (
    CalibrationDocument,
    CalibrationShowDocument,
    ExplanationDocument,
    MergeDocument,
    MomentsDocument,
)
from ptq_cli.cli.shown.documents.evaluation_documents import (
    CheckedRecipesDocument,
    EvaluationShardDocument,
    GateDocument,
    NewRecipeDocument,
    PageDocument,
    ReportsDocument,
    TuneDocument,
)
from ptq_cli.cli.shown.documents.export_documents import (
    ExportDocument,
    PrepareDocument,
    ProfileDocument,
    QuantizeDocument,
)
from ptq_cli.cli.shown.documents.file_documents import (
    AnalysisFile,
    BenchResultDocument,
    DetailsFile,
    LadderFile,
    ReportFile,
)
from ptq_cli.cli.shown.documents.folder_documents import (
    FolderDocument,
    PreparedFolderDocument,
    VerifiedFolderDocument,
)
from ptq_cli.cli.shown.documents.inspection_documents import (
    InspectDocument,
    QuantizersDocument,
    StaircaseDocument,
    VerifyDocument,
)
from ptq_cli.core.documents.json_schema import DocumentKind
from ptq_cli.report.comparison.report_changes import ReportChanges
from ptq_cli.report.comparison.trade_offs import TradeOffs

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
    "gate": (GateDocument,),
    "report": (PageDocument,),
    "compare": (ReportChanges, TradeOffs),
    "quantizers": (QuantizersDocument,),
    "quantizers show": (StaircaseDocument,),
}
"""By the command's words: what it may print, the usual one first."""
