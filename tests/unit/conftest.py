"""What tests of several rooms need: a small report, and a small run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from ptq_cli.core.trust import trust_code
from ptq_cli.evaluation.document.gate_result import Times
from ptq_cli.evaluation.document.measurement import hits_to_text
from ptq_cli.evaluation.document.report_document import (
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
from ptq_cli.evaluation.interval import Flips, Interval
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory
from tests.graphs import parsed
from tests.measured import gate_result, measurement

SETTINGS = {"data": "calib.npz", "eval_data": "calib.npz"}


@pytest.fixture(autouse=True)
def trusted_code() -> Iterator[None]:
    """Rooms by themselves run code of tests' own; tests/e2e/test_trust.py has who may name it."""
    with trust_code():
        yield


@pytest.fixture
def report() -> Report:
    return Report(
        times=Times("2026-01-31T12:00:00Z"),
        versions={"ptq": "0.1.0", "onnxruntime": "1.23.0"},
        model=ModelSummary(
            source="model.pt",
            float_model=ModelEntry("model.float.onnx", "a" * 64, 4_000_000),
            quantized_model=ModelEntry("model_int8.onnx", "b" * 64, 1_000_000),
        ),
        target="ort-cpu",
        amax=AmaxSummary("percentile", {"percentile": 99.999}),
        calibration=CalibrationSummary("histogram", 512, "c" * 64),
        evaluation=EvaluationSummary("eval.npz", 1000, "d" * 64),
        metrics=(
            measurement(
                "top1",
                0.826,
                0.83,
                quantized_interval=Interval(0.801, 0.848, "wilson"),
                drop_interval=Interval(-0.005, 0.0134, "score"),
                flips=Flips.counted(1000, lost=12, gained=8),
                quantized_hits=hits_to_text([True] * 826 + [False] * 174),
            ),
            measurement("sqnr_db", 31.5, quantized_interval=Interval(31.2, 31.9, "bootstrap")),
            measurement("cosine", 0.9987, quantized_interval=Interval(0.99868, 0.99872, "bootstrap")),
            measurement("top1_agreement", 0.985, quantized_interval=Interval(0.9755, 0.991, "wilson")),
            measurement("max_abs_error", 0.125),
        ),
        layers=(
            LayerEntry("/conv1/Conv", "Conv", True, ""),
            LayerEntry("/act/HardSwish", "HardSwish", False, "ort-cpu has no integer HardSwish"),
            LayerEntry("/fc/Gemm", "Gemm", True, ""),
        ),
        gates=(
            gate_result(
                "top1",
                "max_drop",
                0.01,
                0.83 - 0.826,
                interval=Interval(-0.005, 0.0134, "score"),
                samples_needed=2214,
            ),
            gate_result(
                "sqnr_db", "min", 25.0, 31.5, interval=Interval(31.2, 31.9, "bootstrap"), samples_needed=1
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    graph = '(float[batch,4] x) => (float[batch,6] scores) { [fc] scores = Gemm<transB = 1>(x, "fc.weight") }'
    weight = {"fc.weight": random.standard_normal((6, 4)).astype(np.float32)}
    onnx.save(parsed(graph, weight, opset=20, ir_version=10), tmp_path / "model.onnx")
    x = random.standard_normal((10, 4)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=x, label=random.integers(0, 6, 10))
    return tmp_path


@pytest.fixture
def run(folder: Path) -> RunDirectory:
    """The run directory, where nothing is yet."""
    return RunDirectory(Path("ptq-run"))


@pytest.fixture
def request_with() -> Callable[..., Request]:
    """Make a request for the model, with further settings by the names of their flags."""
    return lambda **settings: Request(settings={**SETTINGS, **settings}, model=Path("model.onnx"))


@pytest.fixture
def finished(run: RunDirectory, request_with: Callable[..., Request]) -> RunDirectory:
    """The run directory, calibrated and exported."""
    run_calibrate(request_with(), run)
    run_export(request_with(), run)
    return run
