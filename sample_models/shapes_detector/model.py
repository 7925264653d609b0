"""A small detector without anchors, built as the YOLO networks of today are.

A backbone of cross-stage partial blocks with SiLU and a pooling of several sizes; its two resolutions are
mixed by an upsampling and a downsampling path; a head for boxes and one for classes at each. A side of a
box is the mean of a distribution over whole strides (Li and others, *Generalized Focal Loss*, 2020).
"""

import torch
from scenes import CLASSES, SIZE
from torch import Tensor, nn

STRIDES = (8, 16)
BINS = 8
"""Values that a side's distance may have, in strides."""
HEAD_CHANNELS = 32


class ConvNorm(nn.Sequential):
    """A convolution without bias, its batch normalization, and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        """Pads so that only the stride changes the resolution."""
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.SiLU(),
        )


class PartialBlock(nn.Module):
    """Half of the channels go through residual pairs of 3x3 convolutions; all that came of it is mixed."""

    def __init__(self, inputs: int, outputs: int, pairs: int, *, residual: bool = True) -> None:
        """Half of `outputs` is the width inside."""
        super().__init__()
        self.half = outputs // 2
        self.residual = residual
        self.split = ConvNorm(inputs, outputs, 1)
        self.pairs = nn.ModuleList(
            nn.Sequential(ConvNorm(self.half, self.half, 3), ConvNorm(self.half, self.half, 3))
            for _ in range(pairs)
        )
        self.mix = ConvNorm((2 + pairs) * self.half, outputs, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Maps [batch, inputs, height, width] to [batch, outputs, height, width]."""
        parts = list(self.split(features).split(self.half, 1))
        for pair in self.pairs:
            made = pair(parts[-1])
            parts.append(parts[-1] + made if self.residual else made)
        mixed: Tensor = self.mix(torch.cat(parts, 1))
        return mixed


class PyramidPooling(nn.Module):
    """Maxima of growing surroundings, each from the one before."""

    def __init__(self, channels: int) -> None:
        """Keeps the number of channels."""
        super().__init__()
        self.reduce = ConvNorm(channels, channels // 2, 1)
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.mix = ConvNorm(2 * channels, channels, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Maps [batch, channels, height, width] to the same shape."""
        parts = [self.reduce(features)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        mixed: Tensor = self.mix(torch.cat(parts, 1))
        return mixed


class Head(nn.Module):
    """What one resolution says: distances of the four sides, and scores of classes."""

    def __init__(self, channels: int) -> None:
        """Scores start low, as most places have no shape."""
        super().__init__()
        self.sides = nn.Sequential(
            ConvNorm(channels, HEAD_CHANNELS, 3), nn.Conv2d(HEAD_CHANNELS, 4 * BINS, 1)
        )
        self.scores = nn.Sequential(
            ConvNorm(channels, HEAD_CHANNELS, 3), nn.Conv2d(HEAD_CHANNELS, len(CLASSES), 1)
        )
        nn.init.constant_(self.scores[1].bias, -4.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Maps [batch, channels, height, width] to [batch, 4 * BINS, cells] and [batch, classes, cells]."""
        return self.sides(features).flatten(2), self.scores(features).flatten(2)


class Detector(nn.Module):
    """Backbone, both paths, and the heads."""

    def __init__(self) -> None:
        """Initialises every weight from torch's global generator."""
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, 16, 3, 2), ConvNorm(16, 32, 3, 2), PartialBlock(32, 32, 1))
        self.fine = nn.Sequential(ConvNorm(32, 64, 3, 2), PartialBlock(64, 64, 2))
        self.coarse = nn.Sequential(ConvNorm(64, 128, 3, 2), PartialBlock(128, 128, 1), PyramidPooling(128))
        self.upsample = nn.Upsample(scale_factor=2)
        self.to_fine = PartialBlock(192, 64, 1, residual=False)
        self.downsample = ConvNorm(64, 64, 3, 2)
        self.to_coarse = PartialBlock(192, 128, 1, residual=False)
        self.heads = nn.ModuleList([Head(64), Head(128)])
        centers, strides = cells()
        self.register_buffer("centers", centers, persistent=False)
        self.register_buffer("strides", strides, persistent=False)
        self.register_buffer(
            "bins", torch.arange(BINS, dtype=torch.float32).reshape(1, 1, BINS, 1), persistent=False
        )

    def raw(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Maps uint8 [batch, 3, 96, 96] to logits of the sides, [batch, 4, BINS, cells], and of classes."""
        features = self.stem(image.float() * (1 / 255))
        fine = self.fine(features)
        coarse = self.coarse(fine)
        fine = self.to_fine(torch.cat([self.upsample(coarse), fine], 1))
        coarse = self.to_coarse(torch.cat([self.downsample(fine), coarse], 1))
        said = [head(level) for head, level in zip(self.heads, (fine, coarse), strict=True)]
        sides = torch.cat([sides for sides, _ in said], 2)
        return sides.unflatten(1, (4, BINS)), torch.cat([scores for _, scores in said], 2)

    def boxes(self, sides: Tensor) -> Tensor:
        """Maps logits [batch, 4, BINS, cells] to left, top, right, bottom in pixels, [batch, 4, cells]."""
        distances = (sides.softmax(2) * self.bins).sum(2) * self.strides
        first, last = distances.split(2, 1)
        return torch.cat([self.centers - first, self.centers + last], 1)

    def forward(self, image: Tensor) -> Tensor:
        """Maps uint8 [batch, 3, 96, 96] to [batch, 4 + classes, cells]: boxes in pixels and scores."""
        sides, scores = self.raw(image)
        return torch.cat([self.boxes(sides), scores.sigmoid()], 1)


def cells() -> tuple[Tensor, Tensor]:
    """Returns the centers of all cells as x and y, [1, 2, cells], and their strides, [1, 1, cells]."""
    centers, strides = [], []
    for stride in STRIDES:
        places = (torch.arange(SIZE // stride) + 0.5) * stride
        rows, columns = torch.meshgrid(places, places, indexing="ij")
        centers.append(torch.stack([columns.flatten(), rows.flatten()]))
        strides.append(torch.full((1, columns.numel()), float(stride)))
    return torch.cat(centers, 1)[None], torch.cat(strides, 1)[None]


def build() -> Detector:
    """Returns the network with random weights."""
    return Detector()
