"""Make the folder in which the examples of the commands' help run: a project with everything that they name.

It is a small network for images, as a checkpoint and as ONNX, its data, a recipe, runs that are finished, and
files that other commands or other people wrote. All of it is made once for a process, and then copied.
"""

import contextlib
import io
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from ptq_cli.cli.main import run
from ptq_cli.core.entry_points import load_entry_point
from ptq_cli.core.trust import trust_code
from tools.pages import networks

CHANNELS, STAGES, COLORS, CLASSES, WIDTH = 16, 4, 3, 6, 64
SIDE, PHOTO = 8, 256
CALIBRATION, EVALUATION, PHOTOS = 640, 600, 8
RIDGE = 0.1
MODULE = f"""\
import torch


class Layer(torch.nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(inputs, {CHANNELS}, 3, padding=1)
        self.activation = torch.nn.ReLU6()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.conv(x))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = Layer({COLORS})
        self.stages = torch.nn.Sequential(*(Layer({CHANNELS}) for _ in range({STAGES})))
        self.head = torch.nn.Linear({CHANNELS}, {CLASSES})

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(image)).mean((2, 3)))


def build() -> torch.nn.Module:
    return Net()
"""
RECIPE = """\
[model]
path = "model.onnx"
# model.pt is the same model as a checkpoint.
arch = "model.py:build"

[calibration]
data = "calib.npz"

[evaluation]
data = "eval.npz"
metrics = ["top1"]
"""
COMMANDS = (
    "quantize --set run.evaluate=true --set evaluation.latency=false",
    "quantize --set run.evaluate=true --set evaluation.latency=false --run runs/resnet",
    "evaluate --set evaluation.latency=false --shard 1/2",
    "evaluate --set evaluation.latency=false --shard 2/2",
    *(f"calibrate --shard {index}/2 --run run-{index}" for index in (1, 2)),
    *(f"calibrate --shard {index}/8 --run run-{index}" for index in (3, 4)),
    "calibrate --run monday",
    "calibrate --data eval.npz --run tuesday",
    "export --target tensorrt -o theirs.onnx",
    "export --amax max -o max.onnx",
    "export --amax mse -o mse.onnx",
    "quantize exported --preset w4_block32 -o exported_q4 --run other",
)
COPIES = {
    "model.onnx": ("float.onnx", "model.float.onnx"),
    "ptq-run/model_int8.onnx": ("int8.onnx", "model_int8.onnx"),
    "max.onnx": ("other.onnx",),
    "eval.npz": ("test.npz", "today.npz"),
    "ptq-run/report.json": ("old.json",),
    "ptq-run": ("main", "branch"),
    "runs/resnet": ("runs/mobilenet", "runs/convnext"),
    "ptq.toml": ("recipes/cpu.toml",),
    **{
        f"ptq-run/{name}": (f"fetched/{name}",)
        for name in ("evaluation.shard-1-of-2.safetensors", "evaluation.shard-2-of-2.safetensors")
    },
}

Weights = dict[str, networks.AnyArray]


CHECKPOINTS: set[str] = set()  # SHA-256 of the checkpoints of the projects that were made here


def make_project(folder: Path) -> None:
    """A finished project, as the examples of the help expect it; its user has run its code before."""
    shutil.copytree(_finished(), folder, dirs_exist_ok=True)
    with trust_code():
        load_entry_point("model.py:build", folder, "--arch")


def make_project_without_recipe(folder: Path) -> None:
    """A project before its recipe is written."""
    shutil.copytree(
        _finished(), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("ptq.toml", "recipes")
    )


@cache
def _finished() -> Path:
    place = Path(tempfile.mkdtemp(prefix="ptq-project-"))
    weights = _weights(np.random.default_rng(1))
    onnx.save(_model(weights, 20), place / "model.onnx")
    onnx.save(_model(weights, 13), place / "old.onnx")
    (place / "model.py").write_text(MODULE, encoding="utf-8")
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    torch.save(state, place / "model.pt")
    CHECKPOINTS.add(sha256((place / "model.pt").read_bytes()).hexdigest())
    (place / "ptq.toml").write_text(RECIPE, encoding="utf-8")
    _write_data(np.random.default_rng(2), place)
    _write_exported(np.random.default_rng(3), place / "exported")
    with contextlib.chdir(place), contextlib.redirect_stdout(io.StringIO()):
        for command in COMMANDS:
            status = run(["--quiet", *shlex.split(command)])
            if status:
                raise RuntimeError(f"ptq {command} ended with {status}")
    for source, targets in COPIES.items():
        for target in targets:
            (place / target).parent.mkdir(exist_ok=True)
            copy: Callable[[Path, Path], object] = (
                shutil.copytree if (place / source).is_dir() else shutil.copy
            )
            copy(place / source, place / target)
    return place


def _weights(random: np.random.Generator) -> Weights:
    """Random weights, and a head that is fitted, so that the network tells the classes."""
    names: dict[str, Any] = {}
    exec(MODULE, names)  # noqa: S102 - the text above
    net = names["build"]()
    for parameter in net.parameters():
        scale = (2.0 / parameter[0].numel()) ** 0.5 if parameter.ndim > 1 else 0.1
        values = random.standard_normal(tuple(parameter.shape)) * scale
        parameter.data = torch.from_numpy(values.astype(np.float32))
    images, labels = _images(random, EVALUATION)
    with torch.no_grad():
        features = net.stages(net.stem(torch.from_numpy(images))).mean((2, 3)).numpy()
    weight, bias = networks.fitted(features, 8.0 * np.eye(CLASSES, dtype=np.float32)[labels] - 4.0, RIDGE)
    fitted = {"head.weight": weight.T.copy(), "head.bias": bias}
    return {name: tensor.numpy().copy() for name, tensor in net.state_dict().items()} | fitted


def _images(
    random: np.random.Generator, count: int, side: int = SIDE
) -> tuple[networks.Floats, networks.AnyArray]:
    """Noise in which one color is stronger than the others, or weaker."""
    labels = np.arange(count) % CLASSES
    images = random.uniform(0.0, 0.1, (count, COLORS, side, side)).astype(np.float32) + 0.4
    images[np.arange(count), labels % COLORS] += np.where(labels < COLORS, 0.4, -0.4)[:, None, None]
    return images.astype(np.float32), labels


def _model(weights: Weights, opset: int) -> onnx.ModelProto:
    """The same network as ONNX, with the names that PyTorch's exporter would give."""
    nodes, last = [], "image"
    for layer in ("stem", *(f"stages.{index}" for index in range(STAGES))):
        values = [last, f"{layer}.conv.weight", f"{layer}.conv.bias"]
        conv, clip = f"{layer}.conv/Conv", f"{layer}.activation/Clip"
        nodes += [
            helper.make_node("Conv", values, [conv], conv, pads=[1, 1, 1, 1]),
            helper.make_node("Clip", [conv, "zero", "six"], [clip], clip),
        ]
        last = clip
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["features"], "flatten"),
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["scores"], "head/Gemm", transB=1),
    ]
    bounds = {"zero": np.array(0, np.float32), "six": np.array(6, np.float32)}
    image, scores = _value("image", "batch", COLORS, "height", "width"), _value("scores", "batch", CLASSES)
    return _graph(nodes, [image], [scores], weights | bounds, opset)


def _write_data(random: np.random.Generator, place: Path) -> None:
    for name, count in (("calib", CALIBRATION), ("eval", EVALUATION)):
        images, labels = _images(random, count)
        np.savez(place / f"{name}.npz", image=images, label=labels)
    (place / "images").mkdir()
    for index, photo in enumerate(_images(random, PHOTOS, PHOTO)[0]):
        pixels = np.round(255 * photo.transpose(1, 2, 0)).astype(np.uint8)
        Image.fromarray(pixels).save(place / "images" / f"{index}.jpg")


def _write_exported(random: np.random.Generator, place: Path) -> None:
    """A network for the same images as an exporter leaves it, in a folder, with products of matrices."""
    place.mkdir()
    inputs = COLORS * SIDE * SIDE
    weights = {
        "up": (random.standard_normal((inputs, WIDTH)) / inputs**0.5).astype(np.float32),
        "down": (random.standard_normal((WIDTH, CLASSES)) / WIDTH**0.5).astype(np.float32),
    }
    nodes = [
        helper.make_node("Flatten", ["image"], ["pixels"], "flatten"),
        helper.make_node("MatMul", ["pixels", "up"], ["wide"], "up/MatMul"),
        helper.make_node("Relu", ["wide"], ["positive"], "up/Relu"),
        helper.make_node("MatMul", ["positive", "down"], ["scores"], "down/MatMul"),
    ]
    image, scores = _value("image", "batch", COLORS, SIDE, SIDE), _value("scores", "batch", CLASSES)
    onnx.save(_graph(nodes, [image], [scores], weights, 20), place / "model.onnx")
    (place / "config.json").write_text('{"model_type": "example"}\n', encoding="utf-8")


def _value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Weights,
    opset: int,
) -> onnx.ModelProto:
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "example", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
