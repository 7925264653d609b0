"""The files that say their format and their version; some are also what a command prints with ``--json``."""

from typing import Annotated

from ptq_cli.core.documents.json_schema import FileFormat
from ptq_cli.report.analysis import analysis_document
from ptq_cli.report.document import details, ladder, report_document
from ptq_cli.report.evaluation.speed import bench_document

ReportFile = Annotated[
    report_document.Report, FileFormat(report_document.FORMAT, report_document.FORMAT_VERSION)
]
AnalysisFile = Annotated[
    analysis_document.Analysis, FileFormat(analysis_document.FORMAT, analysis_document.FORMAT_VERSION)
]
DetailsFile = Annotated[details.Details, FileFormat(details.FORMAT, details.FORMAT_VERSION)]
LadderFile = Annotated[ladder.Ladder, FileFormat(ladder.FORMAT, ladder.FORMAT_VERSION)]
BenchResultDocument = Annotated[
    bench_document.Bench, FileFormat(bench_document.FORMAT, bench_document.FORMAT_VERSION)
]
