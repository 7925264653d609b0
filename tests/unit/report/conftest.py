"""A small report, the same in every test; a test replaces what it is about."""

import pytest

from ptq_cli.report.document.gate_result import GateResult, Times
from ptq_cli.report.document.measurement import Measurement, hits_to_text
from ptq_cli.report.document.report_document import (
    AmaxSummary,
    CalibrationSummary,
    EvaluationSummary,
    LayerEntry,
    ModelEntry,
    ModelSummary,
    Report,
    SaturatingLayer,
    Saturation,
)
from ptq_cli.report.interval import Flips, Interval


@pytest.fixture
def report() -> Report:
    return Report(
        times=Times("2026-01-31T12:00:00Z"),
        versions={"ptq": "0.1.0", "onnxruntime": "1.23.0"},
        model=ModelSummary(
            source="model.pt",
            float_model=ModelEntry("model.float.onnx", "a" * 64, 4_000_000),
            quantized_model=ModelEntry("model.int8.onnx", "b" * 64, 1_000_000),
        ),
        target="ort-cpu",
        amax=AmaxSummary("percentile", {"percentile": 99.999}),
        calibration=CalibrationSummary("histogram", 512, "c" * 64),
        evaluation=EvaluationSummary("eval.npz", 1000, "d" * 64),
        metrics=(
            Measurement(
                name="top1",
                unit="share",
                needs_labels=True,
                higher_is_better=True,
                quantized_value=0.826,
                float_value=0.83,
                quantized_interval=Interval(0.801, 0.848, "wilson"),
                drop_interval=Interval(-0.005, 0.0134, "score"),
                flips=Flips.counted(1000, lost=12, gained=8),
                quantized_hits=hits_to_text([True] * 826 + [False] * 174),
            ),
            Measurement(
                name="sqnr_db",
                unit="decibel",
                needs_labels=False,
                higher_is_better=True,
                quantized_value=31.5,
                float_value=None,
                quantized_interval=Interval(31.2, 31.9, "bootstrap"),
            ),
            Measurement(
                name="cosine",
                unit="number",
                needs_labels=False,
                higher_is_better=True,
                quantized_value=0.9987,
                float_value=None,
                quantized_interval=Interval(0.99868, 0.99872, "bootstrap"),
            ),
            Measurement(
                name="top1_agreement",
                unit="share",
                needs_labels=False,
                higher_is_better=True,
                quantized_value=0.985,
                float_value=None,
                quantized_interval=Interval(0.9755, 0.991, "wilson"),
            ),
            Measurement(
                name="max_abs_error",
                unit="number",
                needs_labels=False,
                higher_is_better=False,
                quantized_value=0.125,
            ),
        ),
        layers=(
            LayerEntry("/conv1/Conv", "Conv", True, ""),
            LayerEntry("/act/HardSwish", "HardSwish", False, "ort-cpu has no integer HardSwish"),
            LayerEntry("/fc/Gemm", "Gemm", True, ""),
        ),
        gates=(
            GateResult(
                metric="top1",
                kind="max_drop",
                limit=0.01,
                value=0.83 - 0.826,
                interval=Interval(-0.005, 0.0134, "score"),
                samples_needed=2214,
            ),
            GateResult(
                metric="sqnr_db",
                kind="min",
                limit=25.0,
                value=31.5,
                interval=Interval(31.2, 31.9, "bootstrap"),
                samples_needed=1,
            ),
        ),
        saturation=Saturation(
            2,
            (
                SaturatingLayer(
                    name="/fc/Gemm", op="Gemm", pairs=3, of_pairs=1_280, channels=2, of_channels=10
                ),
            ),
            {"/conv1/Conv": "its weight is uint8"},
        ),
    )
