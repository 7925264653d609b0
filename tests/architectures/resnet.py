"""ResNet, with basic and with bottleneck blocks (He et al., https://arxiv.org/abs/1512.03385)."""

import torch
from torch import Tensor, nn

from tests.architectures.seeding import noise, seeded


class Block(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3 and 1x1, and the shortcut around them."""

    def __init__(self, taken: int, given: int, stride: int, inner: int | None = None) -> None:
        super().__init__()
        sizes = [(taken, given, 3, stride), (given, given, 3, 1)]
        if inner is not None:
            sizes = [(taken, inner, 1, 1), (inner, inner, 3, stride), (inner, given, 1, 1)]
        layers: list[nn.Module] = []
        for source, target, kernel, step in sizes:
            conv = nn.Conv2d(source, target, kernel, step, kernel // 2, bias=False)
            layers += [conv, nn.BatchNorm2d(target), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        same = taken == given and stride == 1
        shortcut = (nn.Conv2d(taken, given, 1, stride, bias=False), nn.BatchNorm2d(given))
        self.shortcut = nn.Identity() if same else nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(*blocks: Block, width: int) -> nn.Module:
    stem = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def basic() -> nn.Module:
    def make() -> nn.Module:
        return resnet(Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 1), width=16)

    return seeded(make, noise(16, 3, 16, 16))


def bottleneck() -> nn.Module:
    def make() -> nn.Module:
        return resnet(Block(8, 16, 1, 8), Block(16, 32, 2, 8), Block(32, 32, 1, 8), width=32)

    return seeded(make, noise(16, 3, 16, 16))
