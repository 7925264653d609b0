"""A plain ResNet, trained on the images that the CNN sample comes from, ready to be quantized.

python -m benchmarks.plain_resnet cifar10_train.npz cifar10_test.npz FOLDER --epochs 3
python -m benchmarks.plain_resnet … --network resnet56    56 layers instead of 20
python -m benchmarks.plain_resnet … --network mobilenet   one like MobileNetV2
python -m benchmarks.recovery --folder FOLDER

The npz files are those that ``sample_models/cifar10_cnn/train.py`` takes; they are not included.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from ptq_cli.core.entry_points import load_entry_point
from ptq_cli.core.trust import trust_code

SAMPLE = Path(__file__).parent.parent / "sample_models" / "cifar10_cnn"
SEED = 0
STAGES = ((16, 1), (32, 2), (64, 2))  # Channels and stride
HELD_OUT = 1000  # Images whose accuracy is printed after each epoch


class Block(nn.Module):
    """Two 3x3 convolutions and what is added to them."""

    def __init__(self, taken: int, given: int, stride: int) -> None:
        """Adds a 1x1 convolution where the shape changes."""
        super().__init__()
        self.first = nn.Conv2d(taken, given, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(given)
        self.second = nn.Conv2d(given, given, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(given)
        projection = (nn.Conv2d(taken, given, 1, stride, bias=False), nn.BatchNorm2d(given))
        self.skip = nn.Identity() if taken == given else nn.Sequential(*projection)

    def forward(self, features: Tensor) -> Tensor:
        """Maps [batch, taken, height, width] to [batch, given, height / stride, width / stride]."""
        inner = torch.relu(self.first_norm(self.first(features)))
        return torch.relu(self.second_norm(self.second(inner)) + self.skip(features))


class ResNet(nn.Module):
    """He and others, Deep Residual Learning for Image Recognition (2016), section 4.2."""

    def __init__(self, blocks: int) -> None:
        """Has ``blocks`` blocks in each stage: 3 for 20 layers; weights are from torch's global generator."""
        super().__init__()
        self.stem = nn.Conv2d(3, STAGES[0][0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(STAGES[0][0])
        self.blocks = nn.Sequential(*_stages(blocks))
        self.classifier = nn.Linear(STAGES[-1][0], 10)

    def forward(self, image: Tensor) -> Tensor:
        """Maps normalized images [batch, 3, 32, 32] to logits [batch, 10]."""
        features = self.blocks(torch.relu(self.norm(self.stem(image))))
        logits: Tensor = self.classifier(features.mean((2, 3)))
        return logits


def _stages(blocks: int) -> Iterator[Block]:
    channels = STAGES[0][0]
    for given, stride in STAGES:
        for block in range(blocks):
            yield Block(channels, given, stride if block == 0 else 1)
            channels = given


def resnet20() -> nn.Module:
    """Returns 20 layers with random weights."""
    return ResNet(3)


def resnet56() -> nn.Module:
    """Returns 56 layers with random weights."""
    return ResNet(9)


def mobilenet() -> nn.Module:
    """Returns inverted residuals alone, as MobileNetV2 has, behind a stem of stride 2.

    Source:
        Sandler and others, MobileNetV2: Inverted Residuals and Linear Bottlenecks (2018), section 4.
    """
    sys.path.insert(0, str(SAMPLE))
    from model import ConvNorm, InvertedResidualNet, Stage  # type: ignore[import-not-found]

    rows = ((1, 16, 1), (2, 24, 1), (3, 32, 2), (3, 64, 2), (2, 96, 1))
    network: nn.Module = InvertedResidualNet(
        [
            Stage(fused=False, blocks=blocks, channels=channels, expansion=6, stride=stride)
            for blocks, channels, stride in rows
        ]
    )
    network.stem = ConvNorm(3, 24, 3, stride=2)
    return network


NETWORKS = {build.__name__: build for build in (resnet20, resnet56, mobilenet)}


def main() -> None:
    """Parse the arguments, train, and write model.pt and ptq.toml."""
    parser = argparse.ArgumentParser(description="Train a network on CIFAR-10.")
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    build = NETWORKS[arguments.network]
    _train(build, arguments.train, arguments.test, arguments.folder / "model.pt", arguments.epochs)
    recipe = (SAMPLE / "ptq.toml").read_text()
    for name in ("calib", "eval"):
        recipe = recipe.replace(f'data = "{name}"', f"data = '{SAMPLE / name}'")
    recipe = recipe.replace(
        'arch = "model.py:build"', f"arch = '{Path(__file__).resolve()}:{arguments.network}'"
    )
    (arguments.folder / "ptq.toml").write_text(recipe)
    with trust_code():  # The recipe is our own: other benchmarks read it without asking.
        load_entry_point(f"{Path(__file__).resolve()}:{arguments.network}", arguments.folder, "arch")


def _in_bfloat16(network: nn.Module) -> nn.Module:
    """Trains with weights in float32 and products in bfloat16, which takes little more than half the time."""
    forward = torch.autocast("cpu", torch.bfloat16)(network.forward)
    network.forward = lambda image: forward(image).float()
    return network


def _train(build: Callable[[], nn.Module], train: Path, test: Path, output: Path, epochs: int) -> None:
    sys.path.insert(0, str(SAMPLE))
    import cifar10  # type: ignore[import-not-found]
    import train as sample  # type: ignore[import-not-found]

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    sample.build = lambda: _in_bfloat16(build())
    sets = [cifar10.read_npz(path) for path in (train, test)]
    (images, labels), (held, answers) = (
        (cifar10.decode(source.jpegs), torch.from_numpy(source.labels)) for source in sets
    )
    run = cast(Callable[..., None], sample.train)
    run(images, labels, (held[:HELD_OUT], answers[:HELD_OUT]), epochs, output)


if __name__ == "__main__":
    main()
