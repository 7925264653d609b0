"""ConvNeXt: depthwise 7x7, LayerNorm over channels, GELU, layer scale (https://arxiv.org/abs/2201.03545)."""

import torch
from torch import Tensor, nn

from tests.architectures.seeding import seeded


class ChannelNorm(nn.LayerNorm):
    """LayerNorm of the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mean(nn.Module):
    """Of each channel over an image."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class Block(nn.Module):
    """One block of a stage."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(torch.full((width,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.scale * self.body(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + inner.permute(0, 3, 1, 2)


def build() -> nn.Module:
    def make() -> nn.Module:
        stem = (nn.Conv2d(3, 8, 4, 4), ChannelNorm(8))
        down = (ChannelNorm(8), nn.Conv2d(8, 16, 2, 2))
        head = (Mean(), nn.LayerNorm(16), nn.Linear(16, 10))
        return nn.Sequential(*stem, Block(8), *down, Block(16), Block(16), *head)

    return seeded(make)
