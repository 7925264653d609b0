"""The report of a quantized model: models, data, metrics, layers and gates; and the details of its page.

The dataclasses are the format: ``docs/report.schema.json`` is made from them.

A file of its own, ``details.json`` in the run directory, so that the page can be made again without running a
model: it names samples, and may hold pictures of them, which a report for others need not. The dataclasses
are the format: ``docs/details.schema.json`` is made from them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from ptq_cli.core.documents import AtLeast, FileFormat, Matches
from ptq_cli.evaluation.document.gate_result import (
    GateResult,
    ReportWarning,
    Times,
    Timestamp,
    Verdict,
    verdict,
)
from ptq_cli.evaluation.document.ladder import Ladder
from ptq_cli.evaluation.document.measurement import (
    AccuracyLevel,
    Generation,
    Measurement,
    Stream,
    require_consistent,
)

if TYPE_CHECKING:
    from ptq_cli.qdq.proof.portable_sums import LayerSums


_Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, kw_only=True)
class SaturatingLayer:
    """A layer with weights that are too large together for a kernel that adds two products in 16 bits."""

    name: Annotated[str, "Of its node."]
    op: Annotated[str, "Its operator."]
    pairs: Annotated[_Count, "How many pairs of neighboring weights are too large."]
    of_pairs: Annotated[_Count, "How many pairs there are."]
    channels: Annotated[_Count, "How many output channels have such a pair."]
    of_channels: Annotated[_Count, "How many output channels there are."]


@dataclass(frozen=True)
class Saturation:
    """What kernels that add two products in 16 bits make of a file."""

    layers: Annotated[_Count, "How many layers have an integer kernel and constant weights."]
    saturating: Annotated[
        tuple[SaturatingLayer, ...], "Those whose sums can saturate, in the order of the graph."
    ] = ()
    exact: Annotated[
        dict[str, str], "Why the kernel of a layer is exact whatever its weights are, by the layer's name."
    ] = field(default_factory=dict)

    @classmethod
    def of(cls, sums: "Iterable[LayerSums]") -> "Saturation":
        """Saturation of a file, from that of each layer."""
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


NO_SATURATION = Saturation(0)  # a file without layers that can saturate


_Sha256 = Annotated[str, Matches("[0-9a-f]{64}", "a SHA-256 in hexadecimal")]


SampleUnit = Literal["sample", "step"]


@dataclass(frozen=True)
class ModelEntry:
    """One ONNX file."""

    name: Annotated[str, "The file's name."]
    sha256: Annotated[_Sha256, "Of its bytes, hexadecimal."]
    bytes: Annotated[Annotated[int, AtLeast(1)], "Its size, at least 1."]


@dataclass(frozen=True)
class ModelSummary:
    """The two models.

    Edge case: What preparation adds or saves is not due to the quantization: sizes are compared with the file
    that the user named, where it is ONNX.
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("size_ratio",)

    source: Annotated[str, "The file that the user named."]
    float_model: Annotated[ModelEntry, "The ONNX model before quantization."]
    quantized_model: Annotated[ModelEntry, "The ONNX model after it."]
    source_bytes: Annotated[
        Annotated[int, AtLeast(1)] | None,
        "Size of the file that the user named, with its external data, if it is ONNX; None of another "
        "kind, or if it was not there any more.",
    ] = None

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
    """How ranges were decided."""

    method: Annotated[str, "The method, such as percentile."]
    settings: Annotated[dict[str, float], "Its own settings, by name."]

    @property
    def text(self) -> str:
        """The method with its settings."""
        return ", ".join(
            [self.method, *(f"{name} = {value!r}" for name, value in sorted(self.settings.items()))]
        )


@dataclass(frozen=True)
class CalibrationSummary:
    """What the ranges were decided from."""

    method: Annotated[str, "The collector."]
    samples: Annotated[_Count, "How many were run."]
    data_digest: Annotated[str, "Of the calibration set."]


@dataclass(frozen=True)
class EvaluationSummary:
    """What the models were compared on."""

    source: Annotated[str, "The data as the user named it."]
    samples: Annotated[_Count, "How many both models saw."]
    data_digest: Annotated[str, "Of the evaluation set."]
    unit: Annotated[
        SampleUnit,
        "What was counted, also in the calibration: samples, or whole steps of a model whose inputs have "
        "no axis for samples.",
    ] = "sample"

    def noun(self, number: int) -> str:
        """Noun behind a number of samples, or of steps.

        Example:
            >>> EvaluationSummary("steps/", 2000, "", "step").noun(2000)
            'steps'
        """
        return self.unit if number == 1 else f"{self.unit}s"


@dataclass(frozen=True)
class LayerEntry:
    """Where one layer runs."""

    name: Annotated[str, "The node's name."]
    op: Annotated[str, "Its operator, such as Conv."]
    integer: Annotated[bool, "Whether it computes in integers."]
    reason: Annotated[str, "Why it stays float; empty for an integer layer."]

    @property
    def placement(self) -> str:
        """Where it runs, with the reason."""
        return "integer" if self.integer else f"float: {self.reason}"


@dataclass(frozen=True)
class BaselineSummary:
    """The earlier report that regressions are from."""

    created: Annotated[Timestamp, "When it was made."]
    quantized_sha256: Annotated[_Sha256, "Of its quantized model."]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was found out about one quantized model."""

    FORMAT: ClassVar[FileFormat] = FileFormat(name="ptq.report", version=3, noun="report")
    DERIVED: ClassVar[tuple[str, ...]] = ("verdict", "quantized_layers", "float_layers")

    times: Annotated[
        Times, "When it was made, and how long the models took; all else is the same for the same input."
    ]
    versions: Annotated[dict[str, str], "Of ptq and of the libraries that took part, by name."]
    model: Annotated[ModelSummary, "The two files."]
    target: Annotated[str, "Whose rules placed the quantization."]
    amax: Annotated[AmaxSummary, "How ranges were decided."]
    calibration: Annotated[CalibrationSummary, "From which data."]
    evaluation: Annotated[EvaluationSummary, "The data that the metrics are of."]
    metrics: Annotated[tuple[Measurement, ...], "What was measured."]
    layers: Annotated[
        tuple[LayerEntry, ...], "Each layer that could be quantized, with the reason of those that are not."
    ]
    gates: Annotated[tuple[GateResult, ...], "Each limit, with its result."]
    baseline: Annotated[BaselineSummary | None, "What regressions are from; None without a limit on one."] = (
        None
    )
    warnings: Annotated[
        tuple[ReportWarning, ...],
        "What a user should know although no gate says so; what follows from measured times is in times.",
    ] = ()
    ladder: Annotated[
        Ladder | None, "What ptq tune tried before it chose this model; None if it was not tuned."
    ] = None
    accuracy_levels: Annotated[
        tuple[AccuracyLevel, ...],
        "What the model gives at accuracy levels 0 and 4 of the kernel that reads weights in blocks; "
        "empty if it has no such weights.",
    ] = ()
    saturation: Annotated[
        Saturation | None,
        "Which layers can saturate on x86 processors without VNNI; None if an earlier version made the "
        "report.",
    ] = None

    stream: Annotated[
        Stream | None,
        "Errors step by step of a model that reads its own states, of which metrics are then; None of "
        "samples that do not depend on each other.",
    ] = None
    generation: Annotated[
        Generation | None, "How prompts are continued; None if evaluation.generate did not ask for it."
    ] = None

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
    def quantized_layers(self) -> _Count:
        """How many layers compute on integers."""
        return sum(layer.integer for layer in self.layers)

    @property
    def float_layers(self) -> _Count:
        """How many layers stay float."""
        return len(self.layers) - self.quantized_layers

    def require_consistent(self) -> None:
        """Refuse metrics whose intervals, flips and hits contradict their values."""
        require_consistent(self.metrics, self.evaluation.samples)


@dataclass(frozen=True)
class Reports:
    """What ``ptq evaluate`` prints for several models."""

    reports: Annotated[tuple[Report, ...], "A report for each, in the order in which the models were named."]


@dataclass(frozen=True, kw_only=True)
class ChangedSample:
    """A sample that the quantized model puts into another class than the float model."""

    index: Annotated[_Count, "Its place in the evaluation set."]
    name: Annotated[str, "What the data call it."]
    label: Annotated[_Count | None, "The right class; None without labels."]
    float_class: Annotated[_Count, "The float model's."]
    quantized_class: Annotated[_Count, "The quantized model's."]

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

    total: Annotated[_Count, "How many did."]
    class_names: Annotated[tuple[str, ...], "By class; empty if the data do not name them."]
    samples: Annotated[tuple[ChangedSample, ...], "The first of them, in the order of the data."]


@dataclass(frozen=True)
class Details:
    """Everything that a page needs beside the report, the models and the calibration."""

    FORMAT: ClassVar[FileFormat] = FileFormat(name="ptq.details", version=2, noun="details")

    created: Annotated[Timestamp, "When the report was made that they belong to."]
    quantized_sha256: Annotated[_Sha256, "Of the model that was evaluated."]
    notes: Annotated[tuple[str, ...], "What running report.toml again would not reproduce."]
    changes: Annotated[Changes | None, "None if the first output is not one of classes."]
