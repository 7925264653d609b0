"""A small report, the same in every test; a test replaces what it is about."""

import pytest

from ptq_cli.report.document.gate_result import GateResult
from ptq_cli.report.document.hits import hits_to_text
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.document.report_document import (
    AmaxSummary,
    CalibrationSummary,
    EvaluationSummary,
    LayerEntry,
    ModelEntry,
    ModelSummary,
    Report,
)
from ptq_cli.report.document.times import Times
from ptq_cli.report.intervals.flips import Flips
from ptq_cli.report.intervals.interval import Interval


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
                "top1",
                "share",
                True,
                True,
                quantized_value=0.826,
                float_value=0.83,
                quantized_interval=Interval(0.801, 0.848, "wilson"),
                drop_interval=Interval(-0.005, 0.0134, "score"),
                flips=Flips.counted(1000, lost=12, gained=8),
                quantized_hits=hits_to_text([True] * 826 + [False] * 174),
            ),
            Measurement("sqnr_db", "decibel", False, True, 31.5, None, Interval(31.2, 31.9, "bootstrap")),
            Measurement(
                "cosine", "number", False, True, 0.9987, None, Interval(0.99868, 0.99872, "bootstrap")
            ),
            Measurement(
                "top1_agreement", "share", False, True, 0.985, None, Interval(0.9755, 0.991, "wilson")
            ),
            Measurement("max_abs_error", "number", False, False, quantized_value=0.125),
        ),
        layers=(
            LayerEntry("/conv1/Conv", "Conv", True, ""),
            LayerEntry("/act/HardSwish", "HardSwish", False, "ort-cpu has no integer HardSwish"),
            LayerEntry("/fc/Gemm", "Gemm", True, ""),
        ),
        gates=(
            GateResult("top1", "max_drop", 0.01, 0.83 - 0.826, Interval(-0.005, 0.0134, "score"), 2214),
            GateResult("sqnr_db", "min", 25.0, 31.5, Interval(31.2, 31.9, "bootstrap"), 1),
        ),
    )
