"""What ``export``, ``quantize``, ``tune``, ``prepare`` and ``profile`` print with ``--json``."""

from typing import Annotated, TypedDict

from ptq_cli.cli.documents.calibration_documents import CalibrationDocument
from ptq_cli.core.json_schema import FileFormat, described_with
from ptq_cli.report.analysis import analysis_document
from ptq_cli.report.document import details, report_document
from ptq_cli.report.document import measurement as ladder
from ptq_cli.report.document.gate_result import Times
from ptq_cli.report.evaluation import bench_document

# The files that say their format and their version; some are also what a command prints with ``--json``.


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


class WarningDocument(TypedDict):
    """Something that a user should know although no limit says so.

    Attributes:
        code: what it is, as a name that stays the same.
        message: what it is, in words.
        hints: what to do about it.
    """

    code: str
    message: str
    hints: list[str]


class RangesDocument(TypedDict):
    """What the rung ``ranges`` did.

    Attributes:
        kept: whether the ranges were changed.
        sqnr_db_before, sqnr_db_after: SQNR of the output on the held-out samples, in dB; null if it is not
            finite.
        samples: how many samples were learned from.
        decided_by: how many were held out.
        tensors: how many tensors there are.
        methods: the tensors whose range was changed, with the method that decides it now.
    """

    kept: bool
    sqnr_db_before: float | None
    sqnr_db_after: float | None
    samples: int
    decided_by: int
    tensors: int
    methods: dict[str, str]


class RecoveredLayerDocument(TypedDict):
    """What a rung changed at a layer.

    Attributes:
        error_before, error_after: noise of its output, as a share of what the output varies by.
    """

    error_before: float
    error_after: float


class RecoveryDocument(TypedDict):
    """What a rung of recovery did.

    Attributes:
        rung: its name.
        kept: whether the model was changed.
        sqnr_db_before, sqnr_db_after: SQNR of the output on the held-out samples, in dB; null if it is not
            finite.
        samples: how many samples were learned from.
        decided_by: how many were held out.
        layers: what changed, by the layer's name.
        not_recovered: the other layers, with the reason.
        few_rows: layers with fewer rows of data than inputs.
    """

    rung: str
    kept: bool
    sqnr_db_before: float | None
    sqnr_db_after: float | None
    samples: int
    decided_by: int
    layers: dict[str, RecoveredLayerDocument]
    not_recovered: dict[str, str]
    few_rows: list[str]


class PreferenceDocument(TypedDict):
    """What was kept in float because it is faster there; times are microseconds of a run.

    Attributes:
        in_float: the layers that stay in float although they could be integer, with the reason.
        expected: time of the quantized model.
        floating: time of the float model.
        integer: time of the model with everything in integers that can be.
        batch: samples per run.
        threads: threads of one operator.
        source: the file of the profile; empty if the times were measured on this machine.
        undecided: why nothing was decided; empty otherwise.
    """

    in_float: dict[str, str]
    expected: float
    floating: float
    integer: float
    batch: int
    threads: int
    source: str
    undecided: str


class ExportedLayerDocument(TypedDict):
    """Where a layer runs.

    Attributes:
        name: name of the node.
        op: its operator.
        integer: whether it computes in integers.
        weight: name of its weight; null if it has none.
        reason: why it stays in float; empty if it does not.
    """

    name: str
    op: str
    integer: bool
    weight: str | None
    reason: str


class ExportedModelDocument(TypedDict):
    """What was exported.

    Attributes:
        output: the quantized model.
        bytes, float_bytes: sizes of the quantized and of the float file. The float file is the one that was
            named, with its external data, if it is ONNX, and otherwise the prepared model.
        target: the target whose rules placed the quantization.
        amax: the method that decided the ranges of activations.
        weight_amax: the method that decided those of weights.
        overridden: activations and weights whose settings an override changed.
        weights, activations: how many have which quantizer.
        one_candidate: tensors whose method had only one range to choose from, with the method.
        integer_kernels, float_kernels: how many kernels of each operator ONNX Runtime computes in integers
            and in float on this CPU; null if it was not asked.
        widened: weights whose scale was widened so that the bias fits, with the number of channels.
        outliers: weights most of whose values have only a few steps, with the reason.
        warnings: what a user should know.
        never_run: layers that stay in float because the calibration never ran them, with the reason.
        ranges: what the rung ``ranges`` did; null if it was not asked for.
        recovery: what each rung of recovery did; null if none was asked for.
        latency: what was kept in float for speed; null if that was not asked for.
        layers: each layer that could be quantized.
    """

    output: str
    bytes: int
    float_bytes: int
    target: str
    amax: str
    weight_amax: str
    overridden: list[str]
    weights: dict[str, int]
    activations: dict[str, int]
    one_candidate: dict[str, str]
    integer_kernels: dict[str, int] | None
    float_kernels: dict[str, int] | None
    widened: dict[str, int]
    outliers: dict[str, str]
    warnings: list[WarningDocument]
    never_run: dict[str, str]
    ranges: RangesDocument | None
    recovery: list[RecoveryDocument] | None
    latency: PreferenceDocument | None
    layers: list[ExportedLayerDocument]


@described_with(ExportedModelDocument)
class ExportDocument(ExportedModelDocument):
    """What ``ptq export`` prints.

    Attributes:
        format: the format of the file: ``onnx``.
    """

    format: str


class CountsDocument(TypedDict):
    """A number before and after.

    Attributes:
        before: of the model that was named.
        after: of the one that was written.
    """

    before: int
    after: int


class PrepareDocument(TypedDict):
    """What ``ptq prepare`` prints.

    Attributes:
        model: the file that was read.
        kind: its format, in words.
        output: the file that was written.
        bytes: its size.
        opset: versions of the operators.
        nodes: numbers of nodes.
        passes: how often each pass was applied; ``simplify`` is how many nodes were folded or removed.
        notes: what a user should know.
        difference: largest difference between the two models, as a share of the largest output; null if they
            were not compared.
        compared_on: what they were compared on, in words.
    """

    model: str
    kind: str
    output: str
    bytes: int
    opset: CountsDocument
    nodes: CountsDocument
    passes: dict[str, int]
    notes: list[str]
    difference: float | None
    compared_on: str


class ProfileDocument(TypedDict):
    """What ``ptq profile`` prints; times are microseconds of a run.

    Attributes:
        output: the file with the profile.
        target: the target whose rules decided what can be integer.
        runtime: the runtime and its version.
        machine: the processor, in words.
        batch: samples per run.
        threads: threads of one operator.
        floating: time of the float model.
        integer: time of the model with everything in integers that can be.
        spread: time of the median run divided by that of a fast run; near 1 on a quiet machine.
        expected: time of the fastest placement.
        in_float: how many layers it keeps in float.
    """

    output: str
    target: str
    runtime: str
    machine: str
    batch: int
    threads: int
    floating: float
    integer: float
    spread: float
    expected: float
    in_float: int


class QuantizeDocument(TypedDict):
    """What ``ptq quantize`` prints.

    Attributes:
        calibration: as from ``ptq calibrate``.
        export: as from ``ptq export``, without the format.
        report: as from ``ptq evaluate``; null if nothing was evaluated.
        times: how long the models take.
    """

    calibration: CalibrationDocument
    export: ExportedModelDocument
    report: ReportFile | None
    times: Times
