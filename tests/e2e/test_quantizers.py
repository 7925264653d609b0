"""Other quantizers from one saved calibration: by flags, by overrides and by presets, and what is refused."""

import json
import tomllib
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from ptq_cli.recipe.recipe_layers import preset_names
from ptq_cli.setup.run_directory import RunDirectory
from tests.e2e.conftest import make_onnx, make_weights

FAMILIES = {
    "scaled": "--weight-bits 4",
    "fixed_point": "--set weights.quantizer=fixed_point --set activations.quantizer=fixed_point",
    "dorefa": "--set weights.quantizer=dorefa",
    "step": "--set weights.quantizer=step --set weights.step=0.05 --set activations.quantizer=step "
    "--set activations.step=0.1",
    "centers": "--set weights.quantizer=centers --set weights.centers=5",
}


def exported(ptq: Any, flags: str) -> dict[str, Any]:
    outcome = ptq(f"export {flags} --json")
    assert outcome.status == 0, outcome
    values: dict[str, Any] = json.loads(outcome.out)
    return values


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_exported_without_data_and_evaluated(folder: Path, ptq: Any, family: str) -> None:
    calibration = (folder / "ptq-run/calibration.safetensors").read_bytes()
    (folder / "calib.npz").rename(folder / "elsewhere.npz")

    values = exported(ptq, FAMILIES[family])

    assert (folder / "ptq-run/calibration.safetensors").read_bytes() == calibration
    in_float = family == "centers"
    layers = {layer["name"]: layer for layer in values["layers"]}
    assert layers["conv"]["integer"] is layers["fc"]["integer"] is not in_float
    assert values["kernels"]["integer"]["Conv"] == values["kernels"]["integer"]["Gemm"] == int(not in_float)
    assert ptq("evaluate --eval-data eval.npz").status == 0
    report = json.loads((folder / "ptq-run/report.json").read_text())
    metrics = {item["name"]: item["quantized_value"] for item in report["metrics"]}
    assert metrics["sqnr_db"] > 8
    told = {layer["name"]: layer for layer in report["layers"]}
    assert told["conv"]["integer"] is not in_float
    assert ("no integer kernel" in told["conv"]["reason"]) is in_float
    assert f"weights: {'centers (5)' if in_float else family}, " in report["amax"]["method"]


def test_an_override_gives_a_layer_another_quantizer(folder: Path, ptq: Any) -> None:
    (folder / "mixed.toml").write_text("""
[export]
prefer = "size"

[weights]
quantizer = "centers"

[[override]]
match = "fc"
weights = { quantizer = "scaled", bits = 4 }

[[override]]
match = "relu"
activations = { quantizer = "step", step = 0.25 }
""")
    values = exported(ptq, "--recipe mixed.toml")
    assert values["weights"] == {"centers (16), 4 bits": 1, "scaled, 4 bits": 1}
    assert values["overridden"] == ["relu", "fc.weight"]
    types = {item.name: item.data_type for item in onnx.load("ptq-run/model_w4.onnx").graph.initializer}
    assert types["conv.weight.indices"] == TensorProto.UINT4
    assert types["fc.weight.quantized"] == TensorProto.INT4
    assert types["conv.bias"] == TensorProto.FLOAT, "a bias beside a codebook stays as it is"
    text = ptq("export --recipe mixed.toml").out
    assert "weights: 1 centers (16), 4 bits; 1 scaled, 4 bits" in text
    assert "note: 1 layer runs in float with these weights" in text


def test_a_later_export_goes_on_from_the_recipe_of_the_run(folder: Path, ptq: Any) -> None:
    exported(ptq, "--set weights.quantizer=dorefa --weight-bits 3")
    assert tomllib.loads((folder / "ptq-run/recipe.toml").read_text())["weights"] == {
        "quantizer": "dorefa",
        "bits": 3,
    }
    assert not (folder / "ptq-run/model_int8.onnx").exists(), "who reads it would get the earlier model"
    content = (folder / "ptq-run/model_w3a8.onnx").read_bytes()
    assert exported(ptq, "")["weights"] == {"dorefa, 3 bits": 2}
    assert (folder / "ptq-run/model_w3a8.onnx").read_bytes() == content
    assert exported(ptq, "--weight-bits 4")["weights"] == {"dorefa, 4 bits": 2}
    assert exported(ptq, "--preset step_w8a8")["activations"] == {"step": 3}
    assert exported(ptq, "--set weights.quantizer=scaled --set activations.quantizer=scaled")["weights"] == {
        "scaled, 8 bits": 2
    }


# Their layers need more channels than this model has, or a calibration of their own.
FOR_TENSORRT = ("fp8", "int4_awq", "nvfp4")


@pytest.mark.parametrize("preset", [name for name in preset_names() if name not in FOR_TENSORRT])
def test_each_preset_works_on_a_calibration_that_is_there(folder: Path, ptq: Any, preset: str) -> None:
    assert exported(ptq, f"--preset {preset}")["weights"]


def test_damaged_metadata_is_refused(folder: Path, ptq: Any, refuse: Any) -> None:
    exported(ptq, FAMILIES["centers"])
    path = folder / "ptq-run/model_w4.onnx"
    model = onnx.load(path)
    (layers,) = (item for item in model.metadata_props if item.key == "ptq.layers")
    for damaged in ("[", "[]", '{"a reason": 7}', '{"a reason": [7]}', "[" * 100_000):
        layers.value = damaged
        onnx.save(model, path)
        refuse(
            "evaluate --eval-data eval.npz",
            "PTQ-FILE-001",
            "damaged metadata 'ptq.layers'",
            hint="export again",
        )


def test_an_older_opset_is_raised_for_four_bits(folder: Path, ptq: Any) -> None:
    model = make_onnx(make_weights(), opset=13)
    model.ir_version = 7
    onnx.save(model, folder / "old.onnx")
    words = "quantize old.onnx --data calib.npz --run old"
    for flags, opset in (("--weight-bits 5", 13), ("--weight-bits 4", 21), ("--preset codebook_w4", 21)):
        assert ptq(f"{words} {flags}").status == 0
        written = onnx.load(RunDirectory(Path("old")).quantized_model)
        assert [item.version for item in written.opset_import if not item.domain] == [opset]
        assert ptq("evaluate --run old --eval-data eval.npz --min sqnr_db=8").status == 0


GRIDS = {
    "tiny": "--set weights.quantizer=step --set weights.step=1e-18 --set activations.quantizer=step "
    "--set activations.step=1e-18",
    "huge": "--set weights.quantizer=step --set weights.step=1e18 --set activations.quantizer=step "
    "--set activations.step=1e18",
    "low point": "--set weights.quantizer=fixed_point --set weights.integer=-60 "
    "--set activations.quantizer=fixed_point "
    "--set activations.integer=-60",
    "high point": "--set weights.quantizer=fixed_point --set weights.integer=60 "
    "--set activations.quantizer=fixed_point "
    "--set activations.integer=60",
}


@pytest.mark.parametrize("grid", GRIDS)
def test_a_grid_far_from_the_values_makes_a_file_that_runs(folder: Path, ptq: Any, grid: str) -> None:
    exported(ptq, GRIDS[grid])
    assert ptq("evaluate --eval-data eval.npz").status == 0
    assert ptq("evaluate --eval-data eval.npz --min sqnr_db=8").status == 3, (
        "it is useless, and the gate says so"
    )


def test_a_parameter_that_only_an_override_makes_wrong_is_refused(folder: Path, refuse: Any) -> None:
    (folder / "wrong.toml").write_text("[[override]]\nmatch = 'fc'\nweights = { bits = 12 }\n")
    refuse("export --recipe wrong.toml", "PTQ-RECIPE-003", "'weights.bits' is 12")
    refuse("quantize model.onnx --data calib.npz --recipe wrong.toml", "PTQ-RECIPE-003", "is 12")
