"""A Llama-like transformer as it is exported: rotary embeddings, shared keys, RMS normalization."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.architectures.seeding import seeded

WORDS, WIDTH, HEADS, KEYS, LENGTH = 50, 32, 4, 2, 12
HEAD = WIDTH // HEADS
POSITIONS = 2000  # Of a long text, whose end is all that the model sees


class Norm(nn.Module):
    """Root mean square, with a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """Attention with rotated queries and keys, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = Norm(), Norm()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KEYS * HEAD, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        y = self.before(x)
        q = rotated(self.q(y).view(batch, length, HEADS, HEAD).transpose(1, 2), cos, sin)
        k = rotated(self.k(y).view(batch, length, KEYS, HEAD).transpose(1, 2), cos, sin)
        v = self.v(y).view(batch, length, KEYS, HEAD).transpose(1, 2)
        k, v = (part.repeat_interleave(HEADS // KEYS, dim=1) for part in (k, v))
        scores = (q @ k.transpose(2, 3)) * HEAD**-0.5 + mask
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        y = self.behind(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of channels by the angle of their position."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Llama(nn.Module):
    """Two blocks over embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("frequencies", 1 / 10000 ** (torch.arange(0, HEAD, 2) / HEAD))

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        batch, length = ids.shape
        turns = self.frequencies[None, :, None].expand(batch, -1, 1) @ positions[:, None, :].float()
        angles = torch.cat((turns, turns), dim=1).transpose(1, 2)[:, None]
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin(), mask)
        return self.head(self.norm(x))


def build() -> nn.Module:
    return seeded(Llama)
