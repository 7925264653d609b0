"""A folder of networks for benchmarks.defaults: architectures with random weights, exported to ONNX.

python -m benchmarks.architectures OUT_DIR

Those of tests/architectures with their Gaussian inputs, perceptrons, and MLPerf Tiny's MobileNetV1 of 0.25
width for images of 96x96, which pads as Keras does.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ptq_cli.core.entry_points import load_entry_point
from ptq_cli.core.tensors import Array
from ptq_cli.core.trust import trust_code
from tests.architectures.registry import ARCHITECTURES, FOLDER

WIDTHS = (64, 256, 1024)
SAMPLES = {"calib": 64, "eval": 32}
# Input channels, output channels and stride of each block.
BLOCKS = ((8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), *[(128, 128, 1)] * 5)
Data = dict[str, dict[str, Array]]
LAST = ((128, 256, 2), (256, 256, 1))


class _Padded(nn.Module):
    """A Conv that pads as Keras does: of stride 2 behind and below alone."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        padding = size // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups, bias=False)
        self.norm, self.pads = nn.BatchNorm2d(outputs), stride > 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pad, and compute."""
        x = nn.functional.pad(x, (0, 1, 0, 1)) if self.pads else x
        return torch.clamp(self.norm(self.conv(x)), 0.0, 6.0)


class MobileNet(nn.Module):
    """MobileNetV1 of 0.25 width with two classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_Padded(3, 8, 3, 2)]
        for inputs, outputs, stride in (*BLOCKS, *LAST):
            layers += [_Padded(inputs, inputs, 3, stride, inputs), _Padded(inputs, outputs, 1, 1)]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(256, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return both scores of images."""
        return torch.softmax(self.head(self.layers(x).mean((2, 3))), 1)


def perceptron(width: int) -> nn.Module:
    """Return four square layers and a head."""
    layers = [item for _ in range(4) for item in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main() -> None:
    """Write all folders."""
    folder = Path(sys.argv[1])
    for width in WIDTHS:
        rows: Data = {
            name: {"x": np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)}
            for seed, (name, count) in enumerate(SAMPLES.items())
        }
        _export(folder / f"perceptron_{width}", perceptron(width), rows)
    torch.manual_seed(0)
    mobile = MobileNet()
    images = {name: _images(seed, count) for seed, (name, count) in enumerate(SAMPLES.items())}
    for _ in range(10):  # The statistics of its normalizations
        mobile(torch.tensor(images["calib"]["image"]))
    _export(folder / "mobilenet_v1_tiny", mobile.eval(), images)
    for name, item in ARCHITECTURES.items():
        with trust_code():
            module = load_entry_point(f"{FOLDER / item.arch}", Path.cwd(), "--arch")()
        data = {
            part: item.draw(np.random.default_rng(seed), count)
            for seed, (part, count) in enumerate(SAMPLES.items())
        }
        _export(folder / name.replace(", ", "_").replace(" ", "_"), module.eval(), data)


def _images(seed: int, count: int) -> dict[str, Array]:
    return {"image": np.random.default_rng(seed).standard_normal((count, 3, 96, 96)).astype(np.float32)}


def _export(folder: Path, module: nn.Module, data: Data) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in data.items():
        np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    names = [*data["calib"]]
    example = tuple(torch.tensor(array[:2]) for array in data["calib"].values())
    sizes = {name: {0: torch.export.Dim("n", min=1)} for name in names}
    torch.onnx.export(
        module,
        example,
        str(folder / "model.onnx"),
        input_names=names,
        dynamic_shapes=tuple(sizes.values()),
        external_data=False,
        dynamo=True,
    )


if __name__ == "__main__":
    main()
