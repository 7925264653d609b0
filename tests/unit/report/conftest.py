"""A small report, the same in every test; a test replaces what it is about."""

import pytest

from ptq_cli.report.document import (
    AmaxSummary,
    CalibrationSummary,
    EvaluationSummary,
    Layer,
    ModelFile,
    ModelSummary,
    Report,
)
from ptq_cli.report.gate import GateResult
from ptq_cli.report.measurement import Measurement


@pytest.fixture
def report() -> Report:
    return Report(
        created="2026-01-31T12:00:00Z",
        versions={"ptq": "0.1.0", "onnxruntime": "1.23.0"},
        model=ModelSummary(
            source="model.pt",
            float_model=ModelFile("model.float.onnx", "a" * 64, 4_000_000),
            quantized_model=ModelFile("model.int8.onnx", "b" * 64, 1_000_000),
        ),
        target="ort-cpu",
        amax=AmaxSummary("percentile", {"percentile": 99.999}),
        calibration=CalibrationSummary("histogram", 512, "c" * 64),
        evaluation=EvaluationSummary("eval.npz", 1000, "d" * 64),
        metrics=(
            Measurement("top1", "share", True, True, quantized_value=0.826, float_value=0.83),
            Measurement("sqnr_db", "decibel", False, True, quantized_value=31.5),
            Measurement("cosine", "number", False, True, quantized_value=0.9987),
            Measurement("top1_agreement", "share", False, True, quantized_value=0.985),
            Measurement("max_abs_error", "number", False, False, quantized_value=0.125),
        ),
        layers=(
            Layer("/conv1/Conv", "Conv", True, ""),
            Layer("/act/HardSwish", "HardSwish", False, "ort-cpu has no integer HardSwish"),
            Layer("/fc/Gemm", "Gemm", True, ""),
        ),
        gates=(GateResult("top1", "max_drop", 0.01, 0.83 - 0.826), GateResult("sqnr_db", "min", 25.0, 31.5)),
    )
