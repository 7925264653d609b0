"""The report: what was compared, what it cost, what stayed float, and the verdict. Format version 9.

The dataclasses are the format: ``docs/report.schema.json`` describes the same keys to other programs, and a
test keeps the two alike. Whoever adds or changes a key raises ``FORMAT_VERSION``.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ptq_cli.core.decoding import AtLeast, Matches, decode, encode, strict_json
from ptq_cli.core.errors import ReportError
from ptq_cli.core.read_files import read_file
from ptq_cli.report.document.gate_result import GateResult, ReportWarning, Times, Timestamp, Verdict, verdict
from ptq_cli.report.document.measurement import AccuracyLevel, Ladder, Measurement, require_consistent

if TYPE_CHECKING:
    from ptq_cli.qdq.proof.portable_sums import LayerSums


# Which layers of a quantized file can saturate on x86 processors without VNNI.


Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, kw_only=True)
class SaturatingLayer:
    """A layer with weights that are too large together for a kernel that adds two products in 16 bits.

    Attributes:
        name: of its node.
        op: its operator.
        pairs: how many pairs of neighboring weights are too large.
        of_pairs: how many pairs there are.
        channels: how many output channels have such a pair.
        of_channels: how many output channels there are.
    """

    name: str
    op: str
    pairs: Count
    of_pairs: Count
    channels: Count
    of_channels: Count


@dataclass(frozen=True)
class Saturation:
    """What kernels that add two products in 16 bits make of a file.

    Attributes:
        layers: how many layers have an integer kernel and constant weights.
        saturating: those whose sums can saturate, in the order of the graph.
        exact: why the kernel of a layer is exact whatever its weights are, by the layer's name.

    Example:
        >>> Saturation(layers=26).text
        '0 of 26 layers can saturate on x86 without VNNI'
    """

    layers: Count
    saturating: tuple[SaturatingLayer, ...] = ()
    exact: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sums: "Iterable[LayerSums]") -> "Saturation":
        """Return what was found of each layer, put together."""
        found = list(sums)
        saturating = tuple(
            SaturatingLayer(
                name=item.name,
                op=item.op,
                pairs=item.unsafe.pairs,
                of_pairs=item.unsafe.of_pairs,
                channels=item.unsafe.channels,
                of_channels=item.unsafe.of_channels,
            )
            for item in found
            if item.unsafe.pairs
        )
        return cls(len(found), saturating, {item.name: item.exact for item in found if item.exact})

    @property
    def text(self) -> str:
        """How many layers can saturate, with the one that has most pairs that are too large."""
        layers = f"{self.layers:,} {'layer' if self.layers == 1 else 'layers'}"
        said = f"{len(self.saturating):,} of {layers} can saturate on x86 without VNNI"
        if not self.saturating:
            return said
        worst = max(self.saturating, key=lambda layer: layer.pairs)
        return (
            f"{said} ({worst.name}: {worst.pairs:,} of {worst.of_pairs:,} pairs, "
            f"{worst.channels:,} of {worst.of_channels:,} channels)"
        )


NOTHING = Saturation(0)
"""Of a file without such layers."""


# Reports of an earlier format version, as this one writes them.


METRIC_KEYS_OF_2 = ("quantized_interval", "drop_interval", "flips", "quantized_hits")
GATE_KEYS_OF_2 = ("interval", "samples_needed", "percent")
LATENCY_KEYS_OF_4: dict[str, Any] = {"own": None, "own_fault": "", "causes": [], "warnings": []}
METRIC_KEYS_OF_3 = ("float_hits", "output", "pytorch_value", "computed_by")


def upgrade(body: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the content of a report of format version 1 to 9 with the keys of version 9.

    Version 1 knew no intervals, version 2 no class, no metric of the user's and no latency, version 3 no
    channel and no warning, version 4 no cause of a latency and no latency of the user's own file: they are
    null or empty. Before version 5 all were called samples; version 5 knew no ratio,
    version 6 no accuracy level, version 7 no size of the user's own file, and version 8 no saturation. What
    versions 1 and 2 called ``created`` stands in ``times`` now.

    Edge case:
        What is no list of objects is left for the decoder to refuse; a key of a later version in a report of
        an earlier one stays, with its value.

    Example:
        >>> body = {"created": "2026-01-31T12:00:00Z", "metrics": [{"name": "top1"}], "gates": []}
        >>> upgrade(body, 1)["times"], upgrade(body, 1)["metrics"][0]["flips"]
        ({'created': '2026-01-31T12:00:00Z', 'latency': None, 'not_measured': ''}, None)
    """
    if version == 1:
        body = _to_2(body)
    if version < 3:
        body = _to_3(body)
    if version < 4:
        body = _to_4(body)
    if version < 5:
        body = _to_5(body)
    if version < 6:
        body = _to_6(body)
    if version < 7:
        body = {"accuracy_levels": [], **body}
    if version < 8:
        body = _to_8(body)
    return {"saturation": None, **body} if version < 9 else body


def _to_2(body: dict[str, Any]) -> dict[str, Any]:
    return {"baseline": None, **_each(_each(body, "metrics", _metric_of_2), "gates", _gate_of_2)}


def _to_3(body: dict[str, Any]) -> dict[str, Any]:
    upgraded = _each(body, "metrics", _metric_of_3)
    if "created" in upgraded:
        upgraded.setdefault("times", {"created": upgraded.pop("created"), "latency": None})
    return upgraded


def _to_4(body: dict[str, Any]) -> dict[str, Any]:
    return {"warnings": [], **_each(body, "metrics", lambda entry: {"channel": None, **entry})}


def _to_5(body: dict[str, Any]) -> dict[str, Any]:
    body = {"ladder": None, **body}
    if isinstance(evaluation := body.get("evaluation"), dict):
        body = {**body, "evaluation": {"unit": "sample", **evaluation}}
    times = body.get("times")
    if not isinstance(times, dict):
        return body
    upgraded = {**times, "not_measured": times.get("not_measured", "")}
    if isinstance(latency := times.get("latency"), dict):
        upgraded["latency"] = {**LATENCY_KEYS_OF_4, **latency}
    return {**body, "times": upgraded}


def _to_6(body: dict[str, Any]) -> dict[str, Any]:
    return _each(body, "metrics", _metric_of_6)


def _to_8(body: dict[str, Any]) -> dict[str, Any]:
    model = body.get("model")
    return {**body, "model": {"source_bytes": None, **model}} if isinstance(model, dict) else body


def _metric_of_6(entry: dict[str, Any]) -> dict[str, Any]:
    return {"ratio_interval": None, "ratio": _ratio_of(entry), **entry}


def _ratio_of(entry: dict[str, Any]) -> Any:
    try:
        value, before = (float(entry[key]) for key in ("quantized_value", "float_value"))
    except (KeyError, TypeError, ValueError, OverflowError):  # for the decoder to refuse
        return None
    return encode(value / before) if before > 0 and entry.get("higher_is_better") is False else None


def _each(body: dict[str, Any], name: str, upgraded: Any) -> dict[str, Any]:
    entries = body.get(name)
    if not isinstance(entries, list):
        return dict(body)
    return {
        **body,
        name: [upgraded(entry) if isinstance(entry, dict) else entry for entry in entries],
    }


def _metric_of_2(entry: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(METRIC_KEYS_OF_2), **entry}


def _gate_of_2(entry: dict[str, Any]) -> dict[str, Any]:
    # Without an interval there is no doubt: a verdict is what `passed` was.
    verdict = "pass" if entry.get("passed") is True else "fail"
    return {**dict.fromkeys(GATE_KEYS_OF_2), "strict": False, "verdict": verdict, **entry}


def _metric_of_3(entry: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(METRIC_KEYS_OF_3), "arguments": {}, "no_interval": "", "by_class": [], **entry}


FORMAT = "ptq.report"
FORMAT_VERSION = 9
READABLE_VERSIONS = (1, 2, 3, 4, 5, 6, 7, 8, 9)

Sha256 = Annotated[str, Matches("[0-9a-f]{64}", "a SHA-256 in hexadecimal")]


SampleUnit = Literal["sample", "step"]


@dataclass(frozen=True)
class ModelEntry:
    """One ONNX file.

    Attributes:
        name: the file's name.
        sha256: of its bytes, hexadecimal.
        bytes: its size, at least 1.
    """

    name: str
    sha256: Sha256
    bytes: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class ModelSummary:
    """The two models.

    Attributes:
        source: the file that the user named.
        float_model: the ONNX model before quantization.
        quantized_model: the ONNX model after it.
        source_bytes: size of the file that the user named, with its external data, if it is ONNX; None of
            another kind, or if it was not there any more.

    Example:
        >>> float_model = ModelEntry("model.float.onnx", "0" * 64, 400)
        >>> ModelSummary("model.pt", float_model, ModelEntry("model.int8.onnx", "1" * 64, 100)).size_ratio
        4.0

    Edge case:
        What preparation adds or saves is no merit of the quantization: sizes are compared with the file that
        the user named, where it is ONNX.
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("size_ratio",)

    source: str
    float_model: ModelEntry
    quantized_model: ModelEntry
    source_bytes: Annotated[int, AtLeast(1)] | None = None

    @property
    def size_ratio(self) -> float:
        """Size of the float file divided by that of the quantized file; texts say the inverse.

        The float file is the one that the user named, if its size is known, otherwise the float model.
        """
        return self.float_bytes / self.quantized_model.bytes

    @property
    def float_name(self) -> str:
        """Name of the float file that sizes are compared with."""
        return self.float_model.name if self.source_bytes is None else PurePath(self.source).name

    @property
    def float_bytes(self) -> int:
        """Size of the float file that sizes are compared with."""
        return self.float_model.bytes if self.source_bytes is None else self.source_bytes


@dataclass(frozen=True)
class AmaxSummary:
    """How ranges were decided.

    Attributes:
        method: the method, such as ``percentile``.
        settings: its own settings, by name.
    """

    method: str
    settings: dict[str, float]


@dataclass(frozen=True)
class CalibrationSummary:
    """What the ranges were decided from.

    Attributes:
        method: the collector.
        samples: how many were run.
        data_digest: of the calibration set.
    """

    method: str
    samples: Count
    data_digest: str


@dataclass(frozen=True)
class EvaluationSummary:
    """What the models were compared on.

    Attributes:
        source: the data as the user named it.
        samples: how many both models saw.
        data_digest: of the evaluation set.
        unit: what was counted, also in the calibration: samples, or whole steps of a model whose inputs have
            no axis for samples.
    """

    source: str
    samples: Count
    data_digest: str
    unit: SampleUnit = "sample"

    def noun(self, number: int) -> str:
        """Return what stands behind a number of samples, or of steps.

        Example:
            >>> EvaluationSummary("steps/", 2000, "", "step").noun(2000)
            'steps'
        """
        return self.unit if number == 1 else f"{self.unit}s"


@dataclass(frozen=True)
class LayerEntry:
    """Where one layer runs.

    Attributes:
        name: the node's name.
        op: its operator, such as ``Conv``.
        integer: whether it computes in integers.
        reason: why it stays float; empty for an integer layer.
    """

    name: str
    op: str
    integer: bool
    reason: str


@dataclass(frozen=True)
class BaselineSummary:
    """The earlier report that regressions are from.

    Attributes:
        created: when it was made.
        quantized_sha256: of its quantized model.
    """

    created: Timestamp
    quantized_sha256: Sha256


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was found out about one quantized model.

    Attributes:
        times: when it was made, and how long the models took; all else is the same for the same input.
        versions: of ptq and of the libraries that took part, by name.
        model: the two files.
        target: whose rules placed the quantization.
        amax: how ranges were decided.
        calibration: from which data.
        evaluation: the data that the metrics are of.
        metrics: what was measured.
        layers: each layer that could be quantized, with the reason of those that are not.
        gates: each limit, with its result.
        baseline: what regressions are from; None without a limit on one.
        warnings: what a user should know although no gate says so; what follows from measured times is in
            ``times``.
        ladder: what ``ptq tune`` tried before it chose this model; None if it was not tuned.
        accuracy_levels: what the model gives at accuracy levels 0 and 4 of the kernel that reads weights in
            blocks; empty if it has no such weights.
        saturation: which layers can saturate on x86 processors without VNNI; None if an earlier version made
            the report.
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("verdict", "quantized_layers", "float_layers")

    times: Times
    versions: dict[str, str]
    model: ModelSummary
    target: str
    amax: AmaxSummary
    calibration: CalibrationSummary
    evaluation: EvaluationSummary
    metrics: tuple[Measurement, ...]
    layers: tuple[LayerEntry, ...]
    gates: tuple[GateResult, ...]
    baseline: BaselineSummary | None = None
    warnings: tuple[ReportWarning, ...] = ()
    ladder: Ladder | None = None
    accuracy_levels: tuple[AccuracyLevel, ...] = ()
    saturation: Saturation | None = None

    @property
    def all_warnings(self) -> tuple[ReportWarning, ...]:
        """The warnings, with those that follow from measured times."""
        return self.warnings + self.times.warnings

    @property
    def created(self) -> str:
        """When it was made, in UTC."""
        return self.times.created

    @property
    def verdict(self) -> Verdict:
        """``"pass"``, ``"fail"`` or ``"no gate"``, from the gates."""
        return verdict(self.gates)

    @property
    def quantized_layers(self) -> Count:
        """How many layers compute on integers."""
        return sum(layer.integer for layer in self.layers)

    @property
    def float_layers(self) -> Count:
        """How many layers stay float."""
        return len(self.layers) - self.quantized_layers


def report_to_json(report: Report) -> str:
    """Return the report as JSON: keys in a fixed order, two spaces, ASCII, a newline at the end.

    Edge case:
        inf, -inf and NaN are the strings ``"inf"``, ``"-inf"`` and ``"nan"``. ASCII only, so that a name from
        a model cannot control the terminal that shows the file.
    """
    # The verdict comes first: a person who opens the file looks for it.
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "verdict": report.verdict}
    document = {**header, **encode(report)}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def read_report(path: Path) -> Report:
    """Read and check a report.

    Raises:
        InputFileError: the file is missing or unreadable.
        ReportError: it is damaged, no report, of another format version, or a value does not fit.
    """
    content = read_file(path, "report")
    try:
        return parse_report(content)
    except ReportError as error:
        raise ReportError(f"report '{path}': {error.message}", hint=error.hint) from error


def parse_report(content: bytes) -> Report:
    """Return the report that ``report_to_json`` wrote as ``content``, now or at an earlier format version.

    Raises:
        ReportError: it is damaged, no report, of another format version, or a value does not fit.

    Edge case:
        What an earlier version did not know is null or empty.

    Example:
        >>> parse_report(b'{"format": "ptq.report", "format_version": 10}')
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.ReportError: PTQ-REPORT-001: it has format version 10, this ptq reads 1 to 9
        hint: upgrade ptq, or run ptq evaluate again with this one
    """
    try:
        value = strict_json(content)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"it is not valid JSON: {error}", hint="run ptq evaluate again") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ReportError(
            f'it is JSON but not a ptq report: it has no "format": "{FORMAT}"',
            hint="pass the report.json of a run",
        )
    version = value.get("format_version")
    if isinstance(version, bool) or version not in READABLE_VERSIONS:
        raise ReportError(
            f"it has format version {str(version)[:40]}, "
            f"this ptq reads {READABLE_VERSIONS[0]} to {FORMAT_VERSION}",
            hint="upgrade ptq, or run ptq evaluate again with this one",
        )
    body = {key: entry for key, entry in value.items() if key not in ("format", "format_version")}
    report: Report = decode(Report, upgrade(body, version), "")
    require_consistent(report.metrics, report.evaluation.samples)
    return report
