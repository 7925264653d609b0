"""What ``evaluate``, ``merge``, ``gate``, ``tune``, ``report`` and ``recipe`` print with ``--json``."""

from typing import Any, TypedDict

from ptq_cli.cli.shown.documents.file_documents import LadderFile, ReportFile
from ptq_cli.report.document.gate_result import GateResult, Verdict


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
