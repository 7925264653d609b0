"""A speech encoder of Conformer blocks (https://arxiv.org/abs/2005.08100), behind a strided convolution."""

from torch import Tensor, nn

from tests.architectures.seeding import noise, seeded

BANDS, WIDTH, HEADS = 20, 32, 4


class FeedForward(nn.Sequential):
    """Half of the sandwich."""

    def __init__(self) -> None:
        super().__init__(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH)
        )


class Convolution(nn.Module):
    """A gated pointwise convolution, a depthwise one, BatchNorm, SiLU, and a pointwise one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        depthwise = nn.Conv1d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH)
        self.body = nn.Sequential(
            nn.Conv1d(WIDTH, 2 * WIDTH, 1),
            nn.GLU(dim=1),
            depthwise,
            nn.BatchNorm1d(WIDTH),
            nn.SiLU(),
            nn.Conv1d(WIDTH, WIDTH, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.norm(x).transpose(1, 2)).transpose(1, 2)


class Block(nn.Module):
    """Feed-forward, attention, convolution, feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = FeedForward(), FeedForward()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.convolution = Convolution()

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        inner = self.norms[0](x)
        x = x + self.attention(inner, inner, inner, need_weights=False)[0]
        x = x + self.convolution(x)
        return self.norms[1](x + 0.5 * self.last(x))


class Conformer(nn.Module):
    """Subsampling, two blocks and a projection to characters."""

    def __init__(self) -> None:
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU())
        self.project = nn.Linear(8 * BANDS // 2, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, 12)

    def forward(self, features: Tensor) -> Tensor:
        x = self.subsample(features[:, None]).transpose(1, 2).flatten(2)
        return self.head(self.blocks(self.project(x)))


def build() -> nn.Module:
    return seeded(Conformer, noise(8, 24, BANDS))
