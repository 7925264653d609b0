"""What a page is made of, as large as a test wants it: a network of so many layers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ptq_cli.report.analysis.analysis_document import (
    Analysis,
    AnalyzedModels,
    Cost,
    LayerAnalysis,
    MetricSummary,
    Samples,
)
from ptq_cli.report.analysis.tensor_rows import Sensitivity, TensorAnalysis
from ptq_cli.report.document.details import ChangedSample, Changes
from ptq_cli.report.document.gate_result import GateResult
from ptq_cli.report.document.measurement import ClassValue, Measurement
from ptq_cli.report.document.report_document import (
    AmaxSummary,
    CalibrationSummary,
    EvaluationSummary,
    LayerEntry,
    ModelEntry,
    ModelSummary,
    Report,
)
from ptq_cli.report.document.times import Latency, Times
from ptq_cli.report.html.evidence import Evidence, LayerEvidence, MethodRange, Origin, TensorEvidence
from ptq_cli.report.html.page_view import PageInput
from ptq_cli.report.intervals.flips import Flips
from ptq_cli.report.intervals.interval import Interval

FLOAT = ModelEntry("model.float.onnx", "a" * 64, 2_000_000)
QUANTIZED = ModelEntry("model.int8.onnx", "b" * 64, 500_000)


def block(index: int) -> str:
    """The name of a layer, as deep as those of an exported network."""
    return f"/encoder/stages.{index // 12}/blocks.{index // 4 % 3}/convolution_{index}/Conv"


@dataclass(frozen=True)
class Network:
    """A network of ``count`` layers, whose names ``name`` makes, and whose texts all are ``text``."""

    count: int = 12
    name: Callable[[int], str] = block
    text: str = "the middle 99.9 % of values take 4.0 % of the range"

    def page_input(self, *, analysed: bool = True) -> PageInput:
        evidence = Evidence(
            Origin("ptq quantize --recipe ptq-run/report.toml --evaluate", f"# {self.text}\n[model]\n"),
            tuple(self._layer_evidence(index) for index in range(self.count)),
            tuple(self._tensor(index) for index in range(self.count)),
        )
        return PageInput(self._report(), evidence, self._changes(), self._analysis() if analysed else None)

    def _report(self) -> Report:
        interval = Interval(-0.002, 0.012, "score")
        flips = Flips.counted(1000, lost=12, gained=8)
        classes = (
            ClassValue(
                3, self.text, 0.75, 0.5, Flips.counted(4, lost=1, gained=0), Interval(-0.2, 0.6, "score")
            ),
        )
        return Report(
            times=Times(
                "2026-01-31T12:00:00Z", Latency(2.0, 1.0, 1, 2, 50, 0.5, Interval(0.45, 0.55, "bootstrap"))
            ),
            versions={"ptq-cli": "0.1.0"},
            model=ModelSummary(self.name(0), FLOAT, QUANTIZED),
            target="ort-cpu",
            amax=AmaxSummary("percentile", {"percentile": 99.999}),
            calibration=CalibrationSummary("histogram", 512, "c" * 64),
            evaluation=EvaluationSummary(self.text, 1000, "d" * 64),
            metrics=(
                Measurement(
                    "top1",
                    "share",
                    True,
                    True,
                    0.826,
                    0.83,
                    drop_interval=interval,
                    flips=flips,
                    pytorch_value=0.83,
                    by_class=classes,
                ),
                Measurement("sqnr_db", "decibel", False, True, 31.5, None, Interval(31.2, 31.9, "bootstrap")),
                Measurement(f"cosine[{self.name(1)}]", "number", False, True, math.inf),
            ),
            layers=tuple(self._layer(index) for index in range(self.count)),
            gates=(
                GateResult("top1", "max_drop", 0.01, 0.004, interval, 2214),
                GateResult(f"cosine[{self.name(1)}]", "min", 0.99, math.inf),
                GateResult("size", "max_size", 400_000.0, 500_000.0),
            ),
        )

    def _layer(self, index: int) -> LayerEntry:
        integer = index % 4 != 3
        return LayerEntry(self.name(index), self._op(index), integer, "" if integer else self.text)

    def _op(self, index: int) -> str:
        return "Clip" if index % 2 else "Conv"

    def _layer_evidence(self, index: int) -> LayerEvidence:
        dtype = "uint8, int8 weight" if index % 4 != 3 else "float32"
        tensor = f"{self.name(index)}_output_0" if index % 4 != 3 else ""
        return LayerEvidence(self.name(index), dtype, (None, 64, 56, 56), tensor)

    def _tensor(self, index: int) -> TensorEvidence:
        ranges = tuple(
            MethodRange(method, -0.0173 * (index + shift), 6.2831 + shift / 7, 30.125 + shift, 154 * shift)
            for shift, method in enumerate(("max", "percentile", "entropy", "mse"))
        )
        counts = tuple(1e6 * math.exp(-(((bar - 20 - index % 30) / 9) ** 2)) for bar in range(72))
        return TensorEvidence(
            f"{self.name(index)}_output_0",
            "uint8",
            -1.2345,
            6.789,
            12_845_056,
            123_456,
            ranges[1],
            ranges,
            counts,
        )

    def _analysis(self) -> Analysis:
        metric = MetricSummary("top1", "share", True, True, 0.83, 0.826, 31.5)
        return Analysis(
            created="2026-01-31T13:00:00Z",
            versions={"ptq-cli": "0.1.0"},
            models=AnalyzedModels(self.name(0), FLOAT, QUANTIZED),
            target="ort-cpu",
            samples=Samples("eval.npz", 256, "d" * 64),
            metric=metric,
            order="sqnr",
            cost=Cost(self.count, 6.5),
            tensors=tuple(self._tensor_analysis(index) for index in range(self.count)),
            layers=tuple(self._layer_analysis(index) for index in range(self.count)),
        )

    def _tensor_analysis(self, index: int) -> TensorAnalysis:
        name, accumulated = f"{self.name(index)}_output_0", 48.0 - 20.0 * index / self.count
        return TensorAnalysis(
            name,
            "activation",
            (),
            "Conv",
            "uint8",
            (None, 64),
            None,
            0.0,
            6.0,
            0.1,
            0.1,
            0,
            0,
            0.0001,
            0.04,
            None,
            accumulated,
            accumulated + 3.0 + index % 5,
            "outliers",
            self.text,
            "--amax mse",
        )

    def _layer_analysis(self, index: int) -> LayerAnalysis:
        # The hardest layer is neither the first nor the last.
        hardness = (index * 7) % self.count
        found = Sensitivity(0.828, 0.829, 0.002, 0.001, 60.0 - hardness, 38.5, self.count - hardness)
        layer = self._layer(index)
        return LayerAnalysis(
            layer.name,
            layer.op,
            layer.integer,
            layer.reason,
            1000 * (index + 1) ** 2,
            f"{layer.name}_output_0",
            40.0 - index % 9,
            44.0,
            found,
            "outliers",
            self.text,
            f"--override {self.text}",
        )

    def _changes(self) -> Changes:
        samples = tuple(
            ChangedSample(index, f"{self.text}/{index:05}.jpg", index % 2, 0, 1 + index % 3)
            for index in range(20)
        )
        return Changes(25, (self.text, "dog"), samples)
