"""Every preset on both sample models, from one calibration each."""

import json
from pathlib import Path
from typing import Any

import pytest

from ptq_cli.recipe.recipe_layers import preset_names

SAMPLES = ("cifar10_cnn", "spoken_digits_transformer")
LEAST = {  # SQNR in dB; on the whole sets they are 2 to 4 higher
    "int8_ort_cpu": 30.0,
    "fixed_point_w8a8": 28.0,
    "step_w8a8": 28.0,
    "scaled_w4a8": 14.0,
    "dorefa_w4a8": 14.0,
    "codebook_w4": 14.0,
}
LARGEST = {"w4": 0.24, "w8": 0.36}
"""Share of the float file."""


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest, samples: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = samples / request.param
    monkeypatch.chdir(folder)
    return folder


def evaluated(ptq: Any, preset: str, flags: str) -> tuple[dict[str, Any], dict[str, Any]]:
    outcome = ptq(f"export --run presets --preset {preset} --json")
    assert outcome.status == 0, outcome
    export: dict[str, Any] = json.loads(outcome.out)
    outcome = ptq(f"evaluate --run presets --json {flags}")
    assert outcome.status == 0, outcome
    return export, {item["name"]: item for item in json.loads(outcome.out)["metrics"]}


def test_every_preset_keeps_what_the_model_knows(sample: Path, ptq: Any) -> None:
    assert set(LEAST) == set(preset_names())
    assert ptq("calibrate --run presets --samples 96").status == 0
    for preset, least in LEAST.items():
        export, metrics = evaluated(ptq, preset, "--eval-samples 320")
        assert metrics["sqnr_db"]["quantized_value"] > least, preset
        assert metrics["top1"]["drop"] < 0.03, preset
        share = LARGEST["w4" if "w4" in preset else "w8"]
        assert export["bytes"] < share * export["float_bytes"], preset
        assert (export["float_kernels"]["Gemm"] == 0) is (preset != "codebook_w4")


@pytest.mark.nightly
def test_every_preset_loses_at_most_one_point_on_all_data(sample: Path, ptq: Any) -> None:
    assert ptq("calibrate --run presets").status == 0
    for preset, least in LEAST.items():
        _, metrics = evaluated(ptq, preset, "")
        assert metrics["sqnr_db"]["quantized_value"] > least + 1, preset
        assert metrics["top1"]["drop"] < 0.01, preset
