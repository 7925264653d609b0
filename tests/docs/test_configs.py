"""Every file under ``configs`` is valid, and says what it claims to say."""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from ptq_cli.plan.target.target_file import load_target
from ptq_cli.recipe.recipe_layers import preset_names
from ptq_cli.setup.resolve import Request, resolve
from tests.each_case import each_case
from tools.pages import networks

CONFIGS = Path(__file__).parents[2] / "configs"
README = (CONFIGS / "README.md").read_text(encoding="utf-8")
RECIPES = sorted((CONFIGS / "recipes").glob("*.toml"))
TARGETS = sorted((CONFIGS / "targets").glob("*.toml"))
OF_SAMPLES = {
    "cifar10_cnn",
    "shakespeare_language_model",
    "shapes_detector",
    "spoken_digits_transformer",
    "w4a8",
}

DETECTOR = """<ir_version: 10, opset_import: ["": 20]>
detector (float[n, 3, 640, 640] images) => (float[n, 4, 80, 80] boxes, float[n, 2, 80, 80] scores) {
    [backbone] a = Conv <strides = [8, 8]> (images, backbone__weight)
    features = Relu (a)
    [head__predict_boxes] raw = Conv (features, boxes__weight)
    [decode__boxes] boxes = Conv (raw, decode__weight)
    [head__scores] logits = Conv (features, scores__weight)
    scores = Sigmoid (logits)
}"""
ENCODER = """<ir_version: 10, opset_import: ["": 20]>
encoder (int64[n, t] input_ids) => (float[n, 3] scores) {
    words = Gather (table, input_ids)
    [up] wide = MatMul (words, up__weight)
    active = Gelu (wide)
    [down] narrow = MatMul (active, down__weight)
    pooled = ReduceMean <keepdims = 0> (narrow, axes)
    [classifier] scores = MatMul (pooled, classifier__weight)
}"""

RunShell = Callable[..., subprocess.CompletedProcess[str]]


@each_case("name", preset_names())
def test_every_preset_resolves(name: str, tmp_path: Path) -> None:
    recipe = resolve(Request(settings={}, preset=name, folder=tmp_path)).recipe
    assert recipe.model.path is None and recipe.calibration.data is None, "a preset names no files"


@each_case("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_resolves_and_names_all_that_a_run_needs(path: Path, tmp_path: Path) -> None:
    recipe = resolve(Request(settings={}, recipe_file=path, folder=tmp_path)).recipe
    places = [recipe.model.path, recipe.calibration.data, recipe.evaluation.data]
    assert all(places) and recipe.gate.has_limits
    if path.stem in OF_SAMPLES:
        assert all(Path(str(place)).exists() for place in places)
        assert recipe.model.arch is None or Path(recipe.model.arch.rpartition(":")[0]).is_file()
    else:
        assert {Path(str(place)).parent for place in places} == {path.parent}
        assert "To use it for your own model" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", TARGETS, ids=lambda path: path.stem)
def test_every_target_loads(path: Path) -> None:
    target = load_target(str(path))
    assert target.name == path.stem and target.extends


@each_case("path", [*RECIPES, *TARGETS], ids=lambda path: path.stem)
def test_every_file_has_a_line_in_the_readme_and_a_reason_for_its_settings(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"({path.relative_to(CONFIGS).as_posix()})" in README
    assert text.count("#") >= len(tomllib.loads(text)) // 2 and text.startswith("# ")


def test_the_readme_names_every_preset() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == set(preset_names())


def make_for_detection(folder: Path) -> None:
    random = np.random.default_rng(0)
    constants = {
        "backbone.weight": networks.random_weight(random, 8, 3, 8, 8, inputs=192),
        "boxes.weight": networks.random_weight(random, 4, 8, 1, 1, inputs=8),
        "scores.weight": networks.random_weight(random, 2, 8, 1, 1, inputs=8),
        "decode.weight": networks.random_weight(random, 4, 4, 1, 1, inputs=4),
    }
    onnx.save(networks.build(DETECTOR, constants), folder / "model.onnx")
    for name in ("calib", "eval"):
        (folder / name).mkdir()
        for index in range(2):
            pixels = random.integers(0, 256, (64, 96, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")


def make_for_transformer(folder: Path) -> None:
    random = np.random.default_rng(0)
    shapes = {"table": (50, 32), "up.weight": (32, 64), "down.weight": (64, 32), "classifier.weight": (32, 3)}
    constants = {name: networks.random_weight(random, *shape, inputs=32) for name, shape in shapes.items()}
    onnx.save(networks.build(ENCODER, constants | {"axes": np.array([1])}), folder / "model.onnx")
    for name in ("calib", "eval"):
        ids = random.integers(0, 50, (32, 8))
        np.savez(folder / f"{name}.npz", input_ids=ids, label=ids[:, 0] % 3)


@pytest.mark.parametrize(
    ("name", "make", "gates"),
    [
        ("ci_gate", make_for_transformer, 7),
        ("detection", make_for_detection, 2),
        ("transformer", make_for_transformer, 1),
    ],
)
def test_a_recipe_for_a_model_of_ones_own_runs_on_one(
    name: str, make: Callable[[Path], None], gates: int, tmp_path: Path, ptq: RunShell
) -> None:
    """Its overrides match layers that such a model has, and each of its limits is decided."""
    make(tmp_path)
    if name == "ci_gate":
        before = (
            "model.onnx --data calib.npz --eval-data eval.npz --metric top1 "
            "--set run.evaluate=true --set evaluation.latency=false"
        )
        assert ptq(f"ptq quantize {before}", tmp_path).returncode == 0
        (tmp_path / "ptq-run" / "report.json").rename(tmp_path / "baseline.json")
    shutil.copy(CONFIGS / "recipes" / f"{name}.toml", tmp_path)
    told = ptq(f"ptq quantize --recipe {name}.toml --run out", tmp_path)
    assert told.returncode in (0, 3), told.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert len(report["gates"]) == gates


@pytest.mark.parametrize("name", sorted(path.name for path in (CONFIGS / "targets").glob("*.toml")))
def test_the_target_runs_on_a_model_of_ones_own(name: str, tmp_path: Path, ptq: RunShell) -> None:
    make_for_transformer(tmp_path)
    target = CONFIGS / "targets" / name
    told = ptq(f"ptq quantize model.onnx --data calib.npz --target {target} --run out", tmp_path)
    assert told.returncode == 0, told.stdout
