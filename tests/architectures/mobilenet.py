"""MobileNetV2 (https://arxiv.org/abs/1801.04381), MobileNetV3 and EfficientNet's MBConv.

V3 (https://arxiv.org/abs/1905.02244) has HardSwish and a gate by HardSigmoid, EfficientNet
(https://arxiv.org/abs/1905.11946) SiLU and a gate by Sigmoid.
"""

from collections.abc import Callable

from torch import Tensor, nn

from tests.architectures.seeding import noise, seeded

Activation = Callable[[], nn.Module]


def convolved(taken: int, given: int, kernel: int, stride: int, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(taken, given, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(given)]


class SqueezeExcite(nn.Module):
    """A gate for each channel, from the channel's mean."""

    def __init__(self, width: int, inner: Activation, gate: Activation) -> None:
        super().__init__()
        reduced = max(width // 4, 4)
        layers = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, reduced, 1), inner())
        self.gate = nn.Sequential(*layers, nn.Conv2d(reduced, width, 1), gate())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, gate it, and narrow again."""

    def __init__(
        self, taken: int, given: int, stride: int, activation: Activation, gate: tuple[Activation, ...] = ()
    ) -> None:
        super().__init__()
        wide = taken * 4
        layers = [*convolved(taken, wide, 1, 1), activation(), *convolved(wide, wide, 3, stride, wide)]
        layers += [activation()] + ([SqueezeExcite(wide, *gate)] if gate else [])
        self.body = nn.Sequential(*layers, *convolved(wide, given, 1, 1))
        self.is_residual = taken == given and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


def network(activation: Activation, *gate: Activation) -> nn.Module:
    def make() -> nn.Module:
        blocks = [
            InvertedResidual(8, 8, 1, activation, gate),
            InvertedResidual(8, 12, 2, activation, gate),
            InvertedResidual(12, 12, 1, activation, gate),
        ]
        head = [*convolved(12, 32, 1, 1), activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*convolved(3, 8, 3, 2), activation(), *blocks, *head, nn.Linear(32, 10))

    return seeded(make, noise(16, 3, 16, 16))


def v2() -> nn.Module:
    return network(nn.ReLU6)


def v3() -> nn.Module:
    return network(nn.Hardswish, nn.ReLU, nn.Hardsigmoid)


def efficientnet() -> nn.Module:
    return network(nn.SiLU, nn.SiLU, nn.Sigmoid)
