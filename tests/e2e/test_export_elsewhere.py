"""What an export to a file of its own leaves alone, and how settings of earlier exports are left behind."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import onnx
import pytest

from ptq_cli.setup.run_directory import RunDirectory
from tests.day import fewer

FLAGS = fewer(["--weight-bits 2", "--set amax.percentile=90", "--target tensorrt"], 2)


def change_metadata(path: Path, changes: dict[str, str | None]) -> None:
    model = onnx.load(path)
    noted = {item.key: item.value for item in model.metadata_props} | changes
    onnx.helper.set_model_props(model, {key: value for key, value in noted.items() if value is not None})
    onnx.save(model, path)


@pytest.mark.parametrize("flags", FLAGS)
def test_an_export_elsewhere_does_not_change_a_later_one(folder: Path, ptq: Any, flags: str) -> None:
    own, recipe = folder / "ptq-run/model_int8.onnx", folder / "ptq-run/recipe.toml"
    before = own.read_bytes(), recipe.read_bytes()
    assert ptq(f"export {flags} -o other.onnx").status == 0
    assert (own.read_bytes(), recipe.read_bytes()) == before
    assert ptq("export").status == 0
    assert (own.read_bytes(), recipe.read_bytes()) == before
    assert (folder / "other.onnx").read_bytes() != before[0]


@pytest.mark.parametrize("flags", FLAGS)
def test_reset_leaves_the_settings_of_earlier_exports_out(folder: Path, ptq: Any, flags: str) -> None:
    own, recipe = folder / "ptq-run/model_int8.onnx", folder / "ptq-run/recipe.toml"
    before = own.read_bytes(), recipe.read_bytes()
    assert ptq(f"export {flags}").status == 0
    changed = RunDirectory(folder / "ptq-run").quantized_model
    assert ptq("export -o again.onnx").status == 0
    assert (folder / "again.onnx").read_bytes() == changed.read_bytes() != before[0]
    assert ptq("export --reset").status == 0
    assert (own.read_bytes(), recipe.read_bytes()) == before


def test_the_run_s_own_model_by_name_is_the_run_s_own_model(folder: Path, ptq: Any) -> None:
    assert ptq("export --weight-bits 2 -o ./ptq-run/../ptq-run/model_int8.onnx").status == 0
    assert tomllib.loads((folder / "ptq-run/recipe.toml").read_text())["weights"]["bits"] == 2
    assert ptq("verify --json").status == 0
    assert ptq("export").status == 0
    assert not (folder / "ptq-run/model_int8.onnx").exists()


@pytest.mark.parametrize(
    "flags",
    [
        "--amax mse --set amax.weight_method=max --exclude fc",
        "--weight-bits 4 --set activations.symmetric=true",
        "--reset",
    ],
)
def test_the_report_of_such_a_model_has_its_ranges_quantizers_and_overrides(folder, ptq, flags):
    assert ptq("export --weight-bits 2 --amax max").status == 0
    assert ptq(f"export --reset {flags} -o other.onnx").status == 0
    assert ptq("evaluate other.onnx --eval-data eval.npz").status == 0
    shutil.copytree(folder / "ptq-run", folder / "kept")
    assert ptq("quantize --recipe kept/report.toml --run again").status == 0
    assert RunDirectory(folder / "again").quantized_model.read_bytes() == (folder / "other.onnx").read_bytes()
    assert not json.loads((folder / "ptq-run/details.json").read_text())["notes"]


def test_the_report_of_a_model_of_an_earlier_version_says_that_the_recipe_has_other_quantizers(folder, ptq):
    assert ptq("export --weight-bits 4 -o other.onnx").status == 0
    change_metadata(folder / "other.onnx", {"ptq.weights": None, "ptq.activations": None})
    assert ptq("evaluate other.onnx --eval-data eval.npz").status == 0
    assert json.loads((folder / "ptq-run/details.json").read_text())["notes"] == [
        "The model was exported with weights: scaled, 4 bits; activations: scaled, the recipe has "
        "the target's own quantizers."
    ]
    assert ptq("evaluate --eval-data eval.npz").status == 0
    assert not json.loads((folder / "ptq-run/details.json").read_text())["notes"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ptq.amax_overrides", "[{]"),
        ("ptq.amax_overrides", '[{"nothing": 1}]'),
        ("ptq.weights", "[{]"),
        ("ptq.weights", '{"bitz": 4}'),
        ("ptq.activations", "[]"),
        ("ptq.amax_percentile", "all"),
    ],
)
def test_damaged_metadata_are_refused(folder: Path, refuse: Any, key: str, value: str) -> None:
    usual = {"ptq.weights": "{}", "ptq.activations": "{}"}
    change_metadata(folder / "ptq-run/model_int8.onnx", {**usual, key: value})
    refuse("evaluate --eval-data eval.npz", "PTQ-FILE-001", "'model_int8.onnx' has damaged metadata")


def test_the_next_step_evaluates_what_was_exported(folder: Path, ptq: Any) -> None:
    assert ptq("calibrate model.onnx --data calib.npz --run other").status == 0
    outcome = ptq("export --weight-bits 2 -o w2.onnx --run other")
    *_, last = outcome.err.splitlines()
    assert last == "next: ptq evaluate w2.onnx --run other"
    words = last.removeprefix("next: ptq ")
    assert ptq(f"{words} --eval-data eval.npz").status == 0
    report = json.loads((folder / "other/report.json").read_text())
    assert report["model"]["quantized_model"]["name"] == "w2.onnx"
