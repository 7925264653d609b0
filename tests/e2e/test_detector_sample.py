"""The detector of the samples: its files belong together, its metric is right, it survives quantization."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from tests.e2e.conftest import scripts_of

SAMPLE = Path(__file__).parents[2] / "sample_models" / "shapes_detector"
MODULES = ("scenes", "detections", "model", "train", "select_scenes")


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    with scripts_of(SAMPLE, MODULES) as found:
        yield found


@pytest.fixture(scope="module")
def scenes() -> dict[str, np.ndarray]:
    with np.load(SAMPLE / "eval.npz") as arrays:
        return {name: arrays[name][:60] for name in arrays.files}


@pytest.fixture(scope="module")
def output(scenes: dict[str, np.ndarray]) -> np.ndarray:
    """What the float model finds in the scenes."""
    onnx.checker.check_model(str(SAMPLE / "model.onnx"), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(SAMPLE / "model.onnx"), options, ["CPUExecutionProvider"])
    return session.run(None, {"image": scenes["image"]})[0]


def perfect(labels: np.ndarray, cells: int = 20) -> np.ndarray:
    """An output that has exactly the shapes of the labels."""
    output = np.zeros((len(labels), 10, cells), np.float32)
    for scene, rows in enumerate(labels):
        for cell, (kind, *box) in enumerate(rows[rows[:, 0] >= 0]):
            output[scene, :4, cell] = box
            output[scene, 4 + int(kind), cell] = 0.9
    return output


def precision_of(scripts: SimpleNamespace, output: np.ndarray, labels: np.ndarray) -> float:
    metric = scripts.detections.MeanAveragePrecision()
    metric.update(output, labels)
    return metric.compute()


def test_the_scenes_are_what_the_scripts_draw(scripts, scenes):
    images, boxes = scripts.scenes.draw_scenes(3, scripts.select_scenes.EVALUATION_SEED)
    np.testing.assert_allclose(boxes, scenes["label"][:3], atol=1e-4)
    assert np.abs(images.astype(int) - scenes["image"][:3]).mean() < 1  # another Pillow may round otherwise


def test_the_model_finds_shapes(scripts, output, scenes):
    assert precision_of(scripts, output, scenes["label"]) > 0.85
    assert scripts.detections.found(output, scenes["label"]).mean() > 0.85


def test_the_metric_knows_right_missing_wrong_and_repeated(scripts, scenes):
    labels = scenes["label"]
    right = perfect(labels)
    assert precision_of(scripts, right, labels) == 1
    assert scripts.detections.found(right, labels).min() == 1
    repeated = np.concatenate([right, right], axis=2)  # of two detections of a shape, one stays
    assert precision_of(scripts, repeated, labels) == 1
    moved = right.copy()
    moved[:, :4] += 40
    assert precision_of(scripts, moved, labels) < 0.1
    only_discs = right.copy()
    only_discs[:, 5:] = 0
    assert precision_of(scripts, only_discs, labels) == pytest.approx(1 / 6)


def test_the_metric_continues_from_its_state(scripts, output, scenes):
    whole, first, second = (scripts.detections.MeanAveragePrecision() for _ in range(3))
    whole.update(output, scenes["label"])
    first.update(output[:30], scenes["label"][:30])
    second.load_state_dict(first.state_dict())
    second.update(output[30:], scenes["label"][30:])
    assert second.compute() == whole.compute()


def test_training_lowers_the_loss(scripts: SimpleNamespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = scripts.model.build()
    batch = [torch.from_numpy(array) for array in scripts.scenes.draw_scenes(4, seed=9)]
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    values = []
    for _ in range(6):
        value = scripts.train.loss(model, *batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.9 * values[0]


@pytest.mark.nightly
def test_the_detector_is_quantized_with_its_recipe(tmp_path, ptq, monkeypatch):
    for file in SAMPLE.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    result = ptq(
        "quantize model.onnx --set evaluation.samples=60 --set evaluation.latency=false "
        "--max-drop map50=0.05 --max-drop found=0.05"
    )
    assert result.status == 0
    assert "found" in result.out and "map50" in result.out
