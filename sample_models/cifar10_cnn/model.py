"""A small inverted-residual network for 32x32 images.

The plan follows EfficientNetV2 (Tan and Le, 2021): fused inverted residuals (one dense 3x3 convolution
that expands) where the feature maps are large, inverted residuals with depthwise convolutions (Sandler and
others, 2018) where they are small. Every activation is ReLU6, so that each of them folds into the
quantization of the convolution before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

CLASSES = 10
STEM_CHANNELS = 24
HEAD_CHANNELS = 256


@dataclass(frozen=True)
class Stage:
    """One row of the architecture's table; the first of its `blocks` takes the `stride`, the rest have 1."""

    fused: bool
    blocks: int
    channels: int
    expansion: int
    stride: int


STAGES = (
    Stage(fused=True, blocks=2, channels=48, expansion=3, stride=2),
    Stage(fused=True, blocks=2, channels=64, expansion=3, stride=2),
    Stage(fused=False, blocks=2, channels=64, expansion=4, stride=1),
    Stage(fused=False, blocks=3, channels=96, expansion=4, stride=2),
)


class ConvNorm(nn.Sequential):
    """A convolution without bias and its batch normalization, then ReLU6 unless `activation` is false."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        """Pads so that only the stride changes the resolution."""
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        if activation:
            self.activation = nn.ReLU6()


class FusedInvertedResidual(nn.Module):
    """Dense 3x3 convolution that expands, linear 1x1 projection, with a residual where shapes allow."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        """Expands to `inputs * expansion` channels."""
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.expand = ConvNorm(inputs, hidden, 3, stride=stride)
        self.project = ConvNorm(hidden, outputs, 1, activation=False)

    def forward(self, features: Tensor) -> Tensor:
        """Maps [batch, inputs, height, width] to [batch, outputs, height / stride, width / stride]."""
        projected: Tensor = self.project(self.expand(features))
        return features + projected if self.residual else projected


class InvertedResidual(nn.Module):
    """1x1 expansion, 3x3 depthwise convolution, linear 1x1 projection, with a residual where shapes allow."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        """Expands to `inputs * expansion` channels."""
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.expand = ConvNorm(inputs, hidden, 1)
        self.depthwise = ConvNorm(hidden, hidden, 3, stride=stride, groups=hidden)
        self.project = ConvNorm(hidden, outputs, 1, activation=False)

    def forward(self, features: Tensor) -> Tensor:
        """Maps [batch, inputs, height, width] to [batch, outputs, height / stride, width / stride]."""
        projected: Tensor = self.project(self.depthwise(self.expand(features)))
        return features + projected if self.residual else projected


class InvertedResidualNet(nn.Module):
    """Stem, stages of (fused) inverted residuals, 1x1 head, global average pooling, classifier."""

    def __init__(self, stages: Sequence[Stage] = STAGES, classes: int = CLASSES) -> None:
        """Builds the stages of the table and initialises every weight from torch's global generator."""
        super().__init__()
        self.stem = ConvNorm(3, STEM_CHANNELS, 3)
        self.stages = nn.Sequential()
        channels = STEM_CHANNELS
        for stage in stages:
            self.stages.append(_blocks(stage, channels))
            channels = stage.channels
        self.head = ConvNorm(channels, HEAD_CHANNELS, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(HEAD_CHANNELS, classes)
        self._initialise()

    def forward(self, image: Tensor) -> Tensor:
        """Maps normalised images [batch, 3, 32, 32] to logits [batch, classes]."""
        features = self.head(self.stages(self.stem(image)))
        logits: Tensor = self.classifier(self.flatten(self.pool(features)))
        return logits

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _blocks(stage: Stage, inputs: int) -> nn.Sequential:
    block = FusedInvertedResidual if stage.fused else InvertedResidual
    first = block(inputs, stage.channels, stage.expansion, stage.stride)
    rest = [block(stage.channels, stage.channels, stage.expansion, 1) for _ in range(stage.blocks - 1)]
    return nn.Sequential(first, *rest)


def build() -> nn.Module:
    """Returns the network with random weights; `model.pt` holds its trained state dict."""
    return InvertedResidualNet()
