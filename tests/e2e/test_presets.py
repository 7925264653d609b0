"""Every preset on both sample models, and their recipes; ``test_quantizers.py`` has the presets by day."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ptq_cli.recipe.recipe_layers import SAME_AS, preset_names
from tests.e2e.conftest import Ptq

SAMPLES = ("cifar10_cnn", "spoken_digits_transformer")
LEAST = {  # SQNR in dB; on the whole sets they are 2 to 4 higher
    "int8_ort_cpu": 30.0,
    "fixed_point_w8a8": 28.0,
    "step_w8a8": 28.0,
    "scaled_w4a8": 14.0,
    "scaled_w4a4": 10.0,
    "dorefa_w4a8": 14.0,
    "codebook_w4": 14.0,
    "dynamic_int8": 30.0,
    "w8a16": 30.0,
}
RECOVERING = ("scaled_w4a4",)  # ``test_recover.py`` has what they do besides, which takes long
FOR_TENSORRT = ("int8", "fp8", "int4_awq", "nvfp4")  # ``test_tensorrt.py`` has these
IN_BLOCKS = ("w2_block32", "w4_block32", "w4_block128", "w8_block32")  # ``test_weight_only.py`` has these
LARGEST = {"w4": 0.24, "w8": 0.36}  # Share of the float file


pytestmark = pytest.mark.nightly


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest, samples: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = samples / request.param
    monkeypatch.chdir(folder)
    return folder


def exported_and_evaluated(ptq, flags, recover=""):
    """Return each preset's export and metrics; the float model runs once for all of them."""
    assert {*LEAST, *FOR_TENSORRT, *IN_BLOCKS, *SAME_AS} == set(preset_names())
    exports: dict[str, dict[str, Any]] = {}
    for preset in LEAST:
        words = recover if preset in RECOVERING else ""
        outcome = ptq(f"export --run presets --preset {preset} {words} --output {preset}.onnx --json")
        assert outcome.status == 0, outcome
        exports[preset] = json.loads(outcome.out)
    models = " ".join(f"--model {preset}.onnx" for preset in LEAST)
    outcome = ptq(f"evaluate --run presets {models} --json {flags}")
    assert outcome.status == 0, outcome
    reports = json.loads(outcome.out)["reports"]
    names = [report["model"]["quantized_model"]["name"] for report in reports]
    assert names == [f"{preset}.onnx" for preset in LEAST]
    return {
        preset: (export, {item["name"]: item for item in report["metrics"]})
        for (preset, export), report in zip(exports.items(), reports, strict=True)
    }


def test_every_preset_keeps_what_the_model_knows(sample, request, ptq):
    if sample.name == "cifar10_cnn":
        shutil.copytree(request.getfixturevalue("calibrated_cifar"), sample / "presets")
    else:
        assert ptq("calibrate model.onnx --run presets --samples 96").status == 0
    for preset, (export, metrics) in exported_and_evaluated(
        ptq, "--eval-samples 320", "--recover none"
    ).items():
        assert metrics["sqnr_db"]["quantized_value"] > LEAST[preset], preset
        assert metrics["top1"]["drop"] < 0.03, preset
        share = LARGEST["w4" if "w4" in preset else "w8"]
        # Convolutions find no ranges at each run.
        share = 1.0 if preset == "dynamic_int8" and sample.name == "cifar10_cnn" else share
        assert export["bytes"] < share * export["float_bytes"], preset
        in_float = preset in ("codebook_w4", "w8a16")
        assert (export["kernels"]["floating"]["Gemm"] > 0) is in_float


def test_every_preset_loses_at_most_one_point_on_all_data(sample: Path, ptq: Any) -> None:
    assert ptq("calibrate --run presets").status == 0
    for preset, (_, metrics) in exported_and_evaluated(ptq, "").items():
        assert metrics["sqnr_db"]["quantized_value"] > LEAST[preset] + 1, preset
        assert metrics["top1"]["drop"] < 0.01, preset


RECIPES = Path(__file__).parents[2] / "configs" / "recipes"


@pytest.mark.parametrize(
    "name",
    ["cifar10_cnn", "shakespeare_language_model", "shapes_detector", "spoken_digits_transformer", "w4a8"],
)
def test_a_recipe_of_a_sample_runs_and_holds_its_limits(name: str, tmp_path: Path, ptq: Ptq) -> None:
    outcome = ptq("quantize", "--recipe", str(RECIPES / f"{name}.toml"), "--run", str(tmp_path / "run"))
    assert outcome.status == 0, outcome
    assert (tmp_path / "run" / "report.html").is_file()
