"""U-Net: ConvTranspose on the way up, Concat with what came down (https://arxiv.org/abs/1505.04597)."""

import torch
from torch import Tensor, nn

from tests.architectures.seeding import noise, seeded


def double(taken: int, given: int) -> nn.Module:
    layers: list[nn.Module] = []
    for source in (taken, given):
        layers += [nn.Conv2d(source, given, 3, padding=1, bias=False), nn.BatchNorm2d(given), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList([double(3, 8), double(8, 16)])
        self.bottom = double(16, 16)
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.merge = nn.ModuleList([double(32, 16), double(16, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips), strict=True):
            x = merge(torch.cat([skip, up(x)], dim=1))
        return self.head(x)


def build() -> nn.Module:
    return seeded(UNet, noise(8, 3, 16, 16))
