"""Transformers: BERT-like (post-norm, padding mask), GPT-like (pre-norm, causal mask, tied head), ViT-like.

Sources:
    Devlin et al., https://arxiv.org/abs/1810.04805; Radford et al., "Language models are unsupervised
    multitask learners"; Dosovitskiy et al., https://arxiv.org/abs/2010.11929.
"""

import torch
from torch import Tensor, nn

from tests.architectures.seeding import seeded

WIDTH, HEADS, WORDS, LENGTH = 32, 4, 50, 12
SMALLEST = torch.finfo(torch.float32).min


class Attention(nn.Module):
    """Self-attention, written out as many models do, with an additive mask."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        heads = [
            layer(x).unflatten(2, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        query, key, value = heads
        scores = query @ key.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a perceptron, each with its norm before or behind it."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = Attention()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        first, second = self.norms
        if self.norm_first:
            x = x + self.attention(first(x), mask)
            return x + self.inner(second(x))
        x = first(x + self.attention(x, mask))
        return second(x + self.inner(x))


class Bert(nn.Module):
    """Two layers over the sum of word and position embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([Layer(norm_first=False), Layer(norm_first=False)])
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1])))
        added = (1.0 - mask[:, None, None, :].float()) * SMALLEST
        for layer in self.layers:
            x = layer(x, added)
        return self.head(torch.tanh(x[:, 0]))


class Gpt(nn.Module):
    """Two layers, each word seeing those before it; the head is the word embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Layer(norm_first=True), Layer(norm_first=True)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("causal", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.words(ids) + self.positions(torch.arange(length))
        mask = self.get_buffer("causal")[:length, :length]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


class Vit(nn.Module):
    """Patches of an image and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.2)
        self.layers = nn.ModuleList([Layer(norm_first=True), Layer(norm_first=True)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(image.shape[0], -1, -1), patches], dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


def bert() -> nn.Module:
    return seeded(Bert)


def gpt() -> nn.Module:
    return seeded(Gpt)


def vit() -> nn.Module:
    return seeded(Vit)
