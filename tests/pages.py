"""What a page is made of, as large as a test wants it: a network of so many layers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ptq_cli.devices.device_answers import answer_gates
from ptq_cli.evaluation.document.analysis_document import (
    Analysis,
    AnalyzedModels,
    Cost,
    LayerAnalysis,
    MetricSummary,
    NoiseShare,
    NoiseShares,
    Samples,
    Sensitivity,
    TensorAnalysis,
)
from ptq_cli.evaluation.document.device_document import (
    Case,
    DeviceAnswer,
    DeviceAnswers,
    DeviceKernel,
    DeviceOutput,
    Manifest,
)
from ptq_cli.evaluation.document.gate_result import Times
from ptq_cli.evaluation.document.measurement import ClassValue
from ptq_cli.evaluation.document.report_document import (
    AmaxSummary,
    CalibrationSummary,
    ChangedSample,
    Changes,
    EvaluationSummary,
    LayerEntry,
    ModelEntry,
    ModelSummary,
    Report,
)
from ptq_cli.evaluation.interval import Flips, Interval
from ptq_cli.placement.fastest_placement import MachineProfile, NodeTimes
from ptq_cli.report.html.fact_rows import Evidence, LayerEvidence, MethodRange, Origin, TensorEvidence
from ptq_cli.report.html.page_view import PageInput
from tests.measured import gate_result, latency_of, measurement

FLOAT = ModelEntry("model.float.onnx", "a" * 64, 2_000_000)
QUANTIZED = ModelEntry("model_int8.onnx", "b" * 64, 500_000)
METRIC = MetricSummary(
    name="top1",
    unit="share",
    needs_labels=True,
    higher_is_better=True,
    float_value=0.83,
    quantized_value=0.826,
    sqnr_db=31.5,
)
SHARES = NoiseShares(
    weights=NoiseShare(34.5, 0.828),
    activations=NoiseShare(33.0, 0.829),
    both=NoiseShare(31.5, 0.826),
    advice=("better weights can win at most 1.5 dB",),
)


def block(index: int) -> str:
    """The name of a layer, as deep as those of an exported network."""
    return f"/encoder/stages.{index // 12}/blocks.{index // 4 % 3}/convolution_{index}/Conv"


@dataclass(frozen=True)
class Network:
    """A network of ``count`` layers, whose names ``name`` makes, and whose texts all are ``text``."""

    count: int = 12
    name: Callable[[int], str] = block
    text: str = "the middle 99.9 % of values take 4.0 % of the range"

    def page_input(self, *, analyzed: bool = True) -> PageInput:
        evidence = Evidence(
            Origin(
                "ptq quantize --recipe ptq-run/report.toml --set run.evaluate=true",
                f"# {self.text}\n[model]\n",
            ),
            tuple(self._layer_evidence(index) for index in range(self.count)),
            tuple(self._tensor(index) for index in range(self.count)),
        )
        return PageInput(
            report=self._report(),
            evidence=evidence,
            changes=self._changes(),
            analysis=self._analysis() if analyzed else None,
            profile=self._profile(),
            devices=self._devices(),
        )

    def _devices(self) -> DeviceAnswers:
        """A fleet of six: as expected, emulated, with kernels that differ, and one that ran nothing."""
        cases = tuple(self._case(index) for index in range(self.count + 1))
        manifest = Manifest(
            versions={"ptq-cli": "0.1.0"},
            machine="x86_64",
            source=QUANTIZED.name,
            source_sha256=QUANTIZED.sha256,
            target="ort-cpu",
            data="calib.npz",
            samples=8,
            reference="float",
            cases=cases,
        )
        devices = tuple(self._device(place, cases[1:]) for place in range(6))
        gates = tuple(answer_gates(devices, 1.0, {"sqnr_db": 25.0}))
        return DeviceAnswers(cases="cases", manifest=manifest, devices=devices, gates=gates)

    def _case(self, index: int) -> Case:
        node, op = (self.name(index - 1), "QLinearConv") if index else ("", "")
        file = {"model": "m.onnx", "model_sha256": "c" * 64, "data": "", "data_sha256": ""}
        file |= {"tensors": "t.safetensors", "tensors_sha256": "d" * 64}
        return Case(name=f"{index}", node=node, op=op, exact=True, runs=3, **file)

    def _device(self, place: int, cases: tuple[Case, ...]) -> DeviceAnswer:
        kernels = tuple(
            DeviceKernel(
                name=case.name,
                node=case.node,
                op=case.op,
                differing=100 * (place == 3) * (index % 2),
                values=4096,
                steps=2.0,
                fault=self.text if place == 5 else "",
            )
            for index, case in enumerate(cases)
        )
        output = DeviceOutput(
            output="y", sqnr_db=31.5, expected_sqnr_db=31.5, top1_agreement=0.97, expected_top1_agreement=0.97
        )
        return DeviceAnswer(
            file=f"answers/{place}.safetensors",
            device=self.name(place),
            machine="aarch64",
            system="Linux",
            runtime="onnxruntime 1.31.1",
            provider="CPUExecutionProvider",
            threads=1,
            seconds=None if place == 5 else 0.00123 * (place + 1),
            emulated=place == 1,
            kernels=kernels,
            outputs=() if place == 5 else (output,),
            fault=self.text if place == 5 else "",
        )

    def _profile(self) -> MachineProfile:
        times = {
            self.name(index): NodeTimes(10.0 * (index + 1), 2.5 * (index + 1)) for index in range(self.count)
        }
        return MachineProfile(
            model="e" * 64,
            target="ort-cpu",
            runtime="onnxruntime 1.0",
            machine="test machine",
            batch=1,
            threads=2,
            floating=2000.0,
            integer=1000.0,
            spread=1.1,
            seam_fixed=1.0,
            seam_element=0.001,
            nodes=times,
            elements={},
        )

    def _report(self) -> Report:
        interval = Interval(-0.002, 0.012, "score")
        flips = Flips.counted(1000, lost=12, gained=8)
        classes = (
            ClassValue(
                label=3,
                name=self.text,
                float_value=0.75,
                quantized_value=0.5,
                flips=Flips.counted(4, lost=1, gained=0),
                drop_interval=Interval(-0.2, 0.6, "score"),
            ),
        )
        return Report(
            times=Times(
                "2026-01-31T12:00:00Z",
                latency_of(0.5, batch_size=1, rounds=50, ratio_interval=Interval(0.45, 0.55, "bootstrap")),
            ),
            versions={"ptq-cli": "0.1.0"},
            model=ModelSummary(self.name(0), FLOAT, QUANTIZED),
            target="ort-cpu",
            amax=AmaxSummary("percentile", {"percentile": 99.999}),
            calibration=CalibrationSummary("histogram", 512, "c" * 64),
            evaluation=EvaluationSummary(self.text, 1000, "d" * 64),
            metrics=(
                measurement(
                    "top1",
                    0.826,
                    0.83,
                    drop_interval=interval,
                    flips=flips,
                    by_class=classes,
                ),
                measurement("sqnr_db", 31.5, quantized_interval=Interval(31.2, 31.9, "bootstrap")),
                measurement(f"cosine[{self.name(1)}]", math.inf),
            ),
            layers=tuple(self._layer(index) for index in range(self.count)),
            gates=(
                gate_result("top1", "max_drop", 0.01, 0.004, interval=interval, samples_needed=2214),
                gate_result(f"cosine[{self.name(1)}]", "min", 0.99, math.inf),
                gate_result("size", "max_size", 400_000.0, 500_000.0),
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
        return LayerEvidence(
            name=self.name(index),
            dtype=dtype,
            shape=(None, 64, 56, 56),
            tensor=tensor,
            multiply_accumulates=1000 * (index + 1),
        )

    def _tensor(self, index: int) -> TensorEvidence:
        ranges = tuple(
            MethodRange(
                method=method,
                low=-0.0173 * (index + shift),
                high=6.2831 + shift / 7,
                sqnr_db=30.125 + shift,
                clipped=154 * shift,
            )
            for shift, method in enumerate(("max", "percentile", "entropy", "mse"))
        )
        counts = tuple(1e6 * math.exp(-(((bar - 20 - index % 30) / 9) ** 2)) for bar in range(72))
        return TensorEvidence(
            name=f"{self.name(index)}_output_0",
            format="uint8",
            low=-1.2345,
            high=6.789,
            values=12_845_056,
            zeros=123_456,
            chosen=ranges[1],
            ranges=ranges,
            counts=counts,
        )

    def _analysis(self) -> Analysis:
        return Analysis(
            created="2026-01-31T13:00:00Z",
            versions={"ptq-cli": "0.1.0"},
            models=AnalyzedModels(self.name(0), FLOAT, QUANTIZED),
            target="ort-cpu",
            samples=Samples("eval.npz", 256, "d" * 64),
            metric=METRIC,
            shares=SHARES,
            order="sqnr",
            cost=Cost(self.count, 6.5),
            tensors=tuple(self._tensor_analysis(index) for index in range(self.count)),
            layers=tuple(self._layer_analysis(index) for index in range(self.count)),
        )

    def _tensor_analysis(self, index: int) -> TensorAnalysis:
        name, accumulated = f"{self.name(index)}_output_0", 48.0 - 20.0 * index / self.count
        return TensorAnalysis(
            name=name,
            kind="activation",
            layers=(),
            op="Conv",
            dtype="uint8",
            shape=(None, 64),
            axis=None,
            low=0.0,
            high=6.0,
            scale_min=0.1,
            scale_max=0.1,
            zero_point_min=0,
            zero_point_max=0,
            clipped=0.0001,
            range_used=0.04,
            channel_imbalance=None,
            sqnr_accumulated_db=accumulated,
            sqnr_isolated_db=accumulated + 3.0 + index % 5,
            cause="outliers",
            finding=self.text,
            remedy="--amax mse",
        )

    def _layer_analysis(self, index: int) -> LayerAnalysis:
        # The hardest layer is neither the first nor the last.
        hardness = (index * 7) % self.count
        found = Sensitivity(
            metric_only_quantized=0.828,
            metric_left_float=0.829,
            drop_only_quantized=0.002,
            drop_left_float=0.001,
            sqnr_only_quantized_db=60.0 - hardness,
            sqnr_left_float_db=38.5,
            rank=self.count - hardness,
        )
        layer = self._layer(index)
        return LayerAnalysis(
            name=layer.name,
            op=layer.op,
            integer=layer.integer,
            reason=layer.reason,
            multiply_accumulates=1000 * (index + 1) ** 2,
            output=f"{layer.name}_output_0",
            sqnr_accumulated_db=40.0 - index % 9,
            sqnr_isolated_db=44.0,
            sensitivity=found,
            cause="outliers",
            finding=self.text,
            remedy=f"--set override={self.text}",
        )

    def _changes(self) -> Changes:
        samples = tuple(
            ChangedSample(
                index=index,
                name=f"{self.text}/{index:05}.jpg",
                label=index % 2,
                float_class=0,
                quantized_class=1 + index % 3,
            )
            for index in range(20)
        )
        return Changes(25, (self.text, "dog"), samples)
