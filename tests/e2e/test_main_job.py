"""The issue's commands, typed as they stand there, on the real sample models with their whole data."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ptq_cli
from ptq_cli.runtime.engine_registry import count_kernels

MODELS = (
    "model.pt",
    *(pytest.param(f"model.{kind}", marks=pytest.mark.nightly) for kind in ("torchscript.pt", "pt2", "onnx")),
)


def read_report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "ptq-run/report.json").read_text())
    return report


@pytest.fixture
def finished_cifar(cifar: Path, calibrated_cifar: Path, ptq: Any) -> Path:
    """The folder with a finished run; the first test that asks for it pays for it."""
    if not (cifar / "ptq-run/report.json").exists():
        shutil.copytree(calibrated_cifar, cifar / "ptq-run")
        for words in ("export --onnx", "evaluate"):
            outcome = ptq(words)
            assert outcome.status == 0, outcome
    return cifar


def test_calibrate_export_evaluate_lose_at_most_one_point(finished_cifar: Path) -> None:
    report = read_report(finished_cifar)
    metrics = {item["name"]: item for item in report["metrics"]}
    assert report["evaluation"]["samples"] == 2000
    assert report["calibration"]["samples"] == 512
    assert metrics["top1"]["float_value"] >= 0.78
    assert metrics["top1"]["drop"] <= 0.01
    assert metrics["sqnr_db"]["quantized_value"] > 20
    assert report["verdict"] == "no gate"
    assert "| top1" in (finished_cifar / "ptq-run/report.md").read_text()


def test_every_convolution_runs_as_an_integer_kernel(finished_cifar: Path) -> None:
    kernels = count_kernels(finished_cifar / "ptq-run/model_int8.onnx")
    assert kernels.integer["Conv"] == 25
    assert kernels.floating["Conv"] == 0


def test_the_int8_file_is_at_most_36_percent_of_the_float_file(finished_cifar: Path) -> None:
    sizes = {
        name: (finished_cifar / f"ptq-run/model{name}.onnx").stat().st_size for name in ("_int8", ".float")
    }
    assert sizes["_int8"] <= 0.36 * sizes[".float"]


def test_quantize_with_arrays_writes_the_output_and_evaluates_nothing(digits: Path, ptq: Any) -> None:
    outcome = ptq("quantize model.onnx --data calib.npz --output out.onnx --samples 64 --run arrays")
    assert outcome.err.splitlines()[-1] == "next: ptq evaluate out.onnx --run arrays"
    assert outcome.status == 0, outcome
    assert (digits / "out.onnx").stat().st_size < 800_000
    assert sorted(path.name for path in (digits / "arrays").iterdir()) == [
        "calibration.safetensors",
        "model.float.onnx",
        "model.location",
        "recipe.toml",
    ]


@pytest.fixture(scope="module")
def expected(samples: Path) -> np.ndarray:
    """What the shipped float ONNX model computes on 32 recordings."""
    return outputs(samples / "spoken_digits_transformer/model.onnx", samples)


def outputs(model: Path, samples: Path) -> np.ndarray:
    with np.load(samples / "spoken_digits_transformer/eval.npz") as arrays:
        inputs = {name: arrays[name][:32] for name in ("features", "mask")}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, inputs)[0]
    return result


@pytest.mark.parametrize("model", MODELS)
def test_every_format_of_the_transformer_gives_the_same_model(digits, ptq, expected, model, samples):
    outcome = ptq(f"quantize {model} --samples 64 --run {model}.run --json")
    assert outcome.status == 0, outcome
    assert json.loads(outcome.out)["export"]["float_bytes"] > 1_000_000
    run = digits / f"{model}.run"
    # The float models are one model; the quantized ones are within what eight bits cost.
    np.testing.assert_allclose(outputs(run / "model.float.onnx", samples), expected, atol=1e-4)
    quantized = outputs(run / "model_int8.onnx", samples)
    assert np.mean(quantized.argmax(1) == expected.argmax(1)) >= 0.95
    noise = np.square(quantized - expected).sum()
    assert 10 * np.log10(np.square(expected).sum() / noise) > 20


@pytest.mark.nightly
def test_the_python_verbs_return_values_and_print_nothing(digits, capfd):
    pytest.importorskip("torch")
    calibrated = ptq_cli.calibrate("model.pt", run="python")
    exported = ptq_cli.export(run="python")
    evaluated = ptq_cli.evaluate(run="python", max_drop={"top1": 0.01})
    top1 = evaluated.report.metrics[0]
    assert calibrated.samples == 320
    assert exported.output == Path("python/model_int8.onnx")
    assert (evaluated.report.verdict, evaluated.report.evaluation.samples) == ("pass", 1000)
    assert top1.float_value is not None and top1.float_value >= 0.7
    assert top1.drop is not None and top1.drop <= 0.01
    assert any(
        layer.op == "MatMul" and layer.quantized for layer in ptq_cli.inspect("model.onnx").plan.layers
    )
    assert capfd.readouterr() == ("", "")
