"""Versions of libraries, with what stands in for one and what may be missing.

The run's own quantized model is named for its weights, and there is one of them.

What a run directory remembers of data, beside a ptq.toml that names none.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import ptq_cli
from ptq_cli.recipe.model_names import own_model
from ptq_cli.recipe.schema import decode_recipe
from ptq_cli.setup.run_directory import DISTRIBUTIONS, FOR_MODULES, RunDirectory, library_versions
from tests.each_case import each_case


def without(*missing):
    def find(name):
        if name in missing:
            raise PackageNotFoundError(name)
        return "1.31.0" if name == "onnxruntime-gpu" else version(name)

    return find


def test_the_build_for_gpus_stands_under_the_usual_name(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", without("onnxruntime"))

    found = library_versions()

    assert found["onnxruntime"] == "1.31.0" and found.keys() >= {"ptq-cli", *DISTRIBUTIONS} - FOR_MODULES
    assert found["onnx"] == version("onnx") and found["ptq-cli"] == ptq_cli.__version__


def test_versions_of_an_onnx_file_need_no_torch(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", without("torch", "torchmetrics"))

    assert list(library_versions()) == ["ptq-cli", *(name for name in DISTRIBUTIONS if "torch" not in name)]


def test_a_library_that_is_not_installed_is_no_version(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", without("onnx"))

    with pytest.raises(PackageNotFoundError):
        library_versions()


@each_case(
    "table, name",
    [
        ({}, "model_int8.onnx"),
        ({"activations": {"mode": "dynamic"}}, "model_dynamic.onnx"),
        ({"weights": {"block_size": 32}, "activations": {"mode": "float"}}, "model_q8.onnx"),
        ({"weights": {"bits": 2, "block_size": 32}, "activations": {"mode": "float"}}, "model_q2.onnx"),
        ({"weights": {"bits": 4}}, "model_w4a8.onnx"),
        ({"activations": {"dtype": "uint16"}}, "model_w8a16.onnx"),
        ({"weights": {"quantizer": "centers"}}, "model_w4.onnx"),
        ({"weights": {"dtype": "float8e4m3fn"}}, "model_fp8.onnx"),
        ({"weights": {"dtype": "float4e2m1"}}, "model_fp4.onnx"),
    ],
)
def test_a_model_is_named_for_its_form(table: dict[str, Any], name: str) -> None:
    assert RunDirectory(Path("run")).quantized_file(decode_recipe(table, "it")).name == name
    assert own_model(name) == own_model(f"{name}.data") == name


def test_the_recipe_says_which_model_is_the_run_s_own(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.quantized_model.name == "model_int8.onnx"
    (tmp_path / "recipe.toml").write_text("[weights]\nbits = 4\n")
    assert run.quantized_model.name == "model_w4a8.onnx"
    (tmp_path / "model.w4.onnx").write_text("of an earlier version")
    assert run.quantized_model.name == "model.w4.onnx"
    (tmp_path / "model_w4a8.onnx").write_text("exported since")
    assert run.quantized_model.name == "model_w4a8.onnx"


def test_earlier_models_with_other_weights_go(tmp_path: Path) -> None:
    others = ("model.int8.onnx", "model_q4.onnx", "model_q4.onnx.data")
    names = ("model_int8.onnx", *others, "model.float.onnx", "model_mine.onnx")
    for name in names:
        (tmp_path / name).write_text(name)
    run = RunDirectory(tmp_path)
    run.discard_other_models(tmp_path / "elsewhere.onnx")
    assert {file.name for file in tmp_path.iterdir()} == set(names)
    run.discard_other_models(tmp_path / "model_int8.onnx")
    left = {file.name for file in tmp_path.iterdir()}
    assert left == set(names) - set(others)
