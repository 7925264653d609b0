"""Versions of libraries, with what stands in for one and what may be missing.

The run's own quantized model is named for its weights, and there is one of them.

What a run directory remembers of data, beside a ptq.toml that names none.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

import ptq_cli
from ptq_cli.core.errors import EmptyDataError
from ptq_cli.latency.run_bench import BenchOptions, run_bench
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.pipeline.run_verify import run_verify
from ptq_cli.recipe.sections import WeightSettings
from ptq_cli.setup import run_directory
from ptq_cli.setup.resolve import Request, resolve
from ptq_cli.setup.run_directory import (
    DISTRIBUTIONS,
    FOR_MODULES,
    RunDirectory,
    library_versions,
    with_calibration_data,
    with_remembered_evaluation,
)
from tests.each_case import each_case


def without(*missing):
    def find(name):
        if name in missing:
            raise PackageNotFoundError(name)
        return "1.31.0" if name == "onnxruntime-gpu" else version(name)

    return find


def test_the_build_for_gpus_stands_under_the_usual_name(monkeypatch):
    monkeypatch.setattr(run_directory, "version", without("onnxruntime"))

    found = library_versions()

    assert found["onnxruntime"] == "1.31.0" and found.keys() >= {"ptq-cli", *DISTRIBUTIONS} - FOR_MODULES
    assert found["onnx"] == version("onnx") and found["ptq-cli"] == ptq_cli.__version__


def test_versions_of_an_onnx_file_need_no_torch(monkeypatch):
    monkeypatch.setattr(run_directory, "version", without("torch", "torchmetrics"))

    assert list(library_versions()) == ["ptq-cli", *(name for name in DISTRIBUTIONS if "torch" not in name)]


def test_a_library_that_is_not_installed_is_no_version(monkeypatch):
    monkeypatch.setattr(run_directory, "version", without("onnx"))

    with pytest.raises(PackageNotFoundError):
        library_versions()


@each_case(
    "weights, name",
    [
        (WeightSettings(), "model.int8.onnx"),
        (WeightSettings(bits=2, block_size=32), "model.w2.onnx"),
        (WeightSettings(quantizer="centers"), "model.w4.onnx"),
        (WeightSettings(dtype="float8e4m3fn"), "model.fp8.onnx"),
        (WeightSettings(dtype="float4e2m1"), "model.fp4.onnx"),
    ],
)
def test_a_model_is_named_for_its_weights(weights: WeightSettings, name: str) -> None:
    assert RunDirectory(Path("run")).quantized_file(weights).name == name


def test_the_recipe_says_which_model_is_the_run_s_own(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.quantized_model.name == "model.int8.onnx"
    (tmp_path / "recipe.toml").write_text("[weights]\nbits = 4\n")
    assert run.quantized_model.name == "model.w4.onnx"
    (tmp_path / "model.int8.onnx").write_text("of an earlier version")
    assert run.quantized_model.name == "model.int8.onnx"
    (tmp_path / "model.w4.onnx").write_text("exported since")
    assert run.quantized_model.name == "model.w4.onnx"


def test_earlier_models_with_other_weights_go(tmp_path: Path) -> None:
    names = ("model.int8.onnx", "model.w4.onnx", "model.w4.onnx.data", "model.float.onnx", "model.mine.onnx")
    for name in names:
        (tmp_path / name).write_text(name)
    run = RunDirectory(tmp_path)
    run.discard_other_models(tmp_path / "elsewhere.onnx")
    assert {file.name for file in tmp_path.iterdir()} == set(names)
    run.discard_other_models(tmp_path / "model.int8.onnx")
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"model.int8.onnx", "model.float.onnx", "model.mine.onnx"}


QUICK = {"latency": False}


@pytest.fixture
def remembering(finished: RunDirectory) -> RunDirectory:
    """A run, and a recipe that takes the place of the run's own and names no data."""
    Path("ptq.toml").write_text("[gate.min]\ncosine = 0.1\n")
    return finished


def remembered(run: RunDirectory, **settings: object) -> tuple[str, int | None, str]:
    request = Request(settings=settings)
    found, note = with_remembered_evaluation(resolve(request), run, None)
    data = found.recipe.evaluation.data
    return Path(data).name if data is not None else "", found.recipe.evaluation.samples, note


def test_an_evaluation_takes_the_data_of_the_last_one(remembering: RunDirectory) -> None:
    np.savez("other.npz", x=np.ones((5, 4), np.float32), label=np.zeros(5, np.int64))
    assert remembered(remembering) == (
        "calib.npz",
        None,
        "evaluation data: calib.npz, as ptq quantize was given them",
    )
    run_evaluate(Request(settings={**QUICK, "eval_data": "other.npz", "eval_samples": 4}), remembering)
    note = "evaluation data: other.npz, as in the last ptq evaluate"
    assert remembered(remembering) == ("other.npz", 4, note)
    assert remembered(remembering, eval_samples=3) == ("other.npz", 3, note)
    assert remembered(remembering, eval_data="calib.npz") == ("calib.npz", None, "")
    told: list[str] = []
    report = run_evaluate(
        Request(settings=QUICK), remembering, progress=lambda at: told.append(at.note)
    ).report
    assert (report.evaluation.source, report.evaluation.samples) == ("other.npz", 4)
    assert note in told
    Path("ptq.toml").write_text('[evaluation]\ndata = "calib.npz"\n')
    assert remembered(remembering) == ("calib.npz", None, ""), "a recipe says what is meant"


def test_nothing_to_remember_is_asked_for(finished: RunDirectory) -> None:
    Path("ptq.toml").write_text("[amax]\nmethod = 'max'\n")
    finished.recipe.unlink()
    with pytest.raises(EmptyDataError, match="no evaluation data was given"):
        run_evaluate(Request(settings=QUICK), finished)


def test_verify_and_bench_take_the_samples_of_the_run(remembering: RunDirectory) -> None:
    verified = run_verify(Request(settings={}), remembering)
    assert Path(verified.comparison.data).name == "calib.npz"
    benched = run_bench(Request(settings={"threads": 1}), remembering, options=BenchOptions(runs=5))
    assert Path(benched.data).name == "calib.npz"


def test_a_tuning_takes_the_samples_of_the_same_model(remembering: RunDirectory) -> None:
    def data(model: str, **settings: object) -> tuple[object, str]:
        request = Request(settings=settings, model=Path(model))
        found, note = with_calibration_data(resolve(request), remembering)
        return Path(str(found.settings.get("data"))).name, note

    note = "calibration data: calib.npz, as in the last calibration"
    assert data("model.onnx") == ("calib.npz", note)
    assert data("other.onnx") == ("None", "")
    assert data("model.onnx", data="other.npz") == ("other.npz", "")
    assert data("model.onnx", rename={"y": "x"}) == ("None", ""), "read in another way"
