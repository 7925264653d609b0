"""A small language model, built like today's large ones: it predicts the next token of a text.

Decoder blocks of RMS normalization (Zhang and Sennrich, 2019), attention with rotary positions (Su et al.,
2021) whose keys and values are shared by groups of heads (Ainslie et al., 2023), and a gated layer, SwiGLU
(Shazeer, 2020). Inputs and outputs have the names that Transformers gives them. Weights are stored as
[inputs, outputs], as ONNX's MatMul reads them.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 1024
WIDTH = 128
HEADS = 4
KEY_HEADS = 2
HEAD_WIDTH = WIDTH // HEADS
HIDDEN = 256
BLOCKS = 3
CONTEXT = 128
ROTARY_BASE = 10000.0
EPSILON = 1e-6
SPREAD = 0.5
"""Standard deviation of the logarithm of the normalizations' scales before training."""
MASKED_SCORE = -1e4

Cache = tuple[Tensor, Tensor]
"""Keys and values of one block, each [batch, KEY_HEADS, past, HEAD_WIDTH]."""


class Projection(nn.Module):
    """A linear layer without a bias."""

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0) -> None:
        """Draws the weight [inputs, outputs] with a standard deviation of `gain` / √inputs."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * gain / math.sqrt(inputs))

    def reads(self, norm: "RMSNorm") -> "Projection":
        """Divides each input's weights by its scale in `norm`: before training, all inputs count alike."""
        with torch.no_grad():
            self.weight /= norm.weight[:, None]
        return self

    def forward(self, features: Tensor) -> Tensor:
        """Maps [..., inputs] to [..., outputs]."""
        return features @ self.weight


class RMSNorm(nn.Module):
    """Divides by the root mean square of the last axis, and multiplies by a learned scale."""

    def __init__(self, width: int) -> None:
        """Draws the scales from a log-normal distribution: as in large models, a few are far larger."""
        super().__init__()
        self.weight = nn.Parameter(torch.exp(torch.randn(width) * SPREAD))

    def forward(self, features: Tensor) -> Tensor:
        """Maps [..., width] to the same shape."""
        return features * torch.rsqrt(features.pow(2).mean(-1, keepdim=True) + EPSILON) * self.weight


class Attention(nn.Module):
    """Causal attention: a token reads those before it, and itself."""

    def __init__(self, norm: RMSNorm) -> None:
        """Draws the four projections; `norm` is the normalization before them."""
        super().__init__()
        self.query = Projection(WIDTH, HEADS * HEAD_WIDTH).reads(norm)
        self.key = Projection(WIDTH, KEY_HEADS * HEAD_WIDTH).reads(norm)
        self.value = Projection(WIDTH, KEY_HEADS * HEAD_WIDTH).reads(norm)
        self.output = Projection(HEADS * HEAD_WIDTH, WIDTH, 1 / math.sqrt(2 * BLOCKS))

    def forward(
        self, features: Tensor, rotation: tuple[Tensor, Tensor], bias: Tensor, past: Cache | None
    ) -> tuple[Tensor, Cache]:
        """Maps [batch, sequence, WIDTH] to the same shape, and returns all keys and values up to here.

        Args:
            features: of the new tokens.
            rotation: cosine and sine of their positions, [batch, 1, sequence, HEAD_WIDTH].
            bias: added to the scores, [batch, 1, sequence, past + sequence].
            past: the cache of the tokens before; None if there are none.
        """
        query = rotate(split_heads(self.query(features), HEADS), rotation)
        key = rotate(split_heads(self.key(features), KEY_HEADS), rotation)
        value = split_heads(self.value(features), KEY_HEADS)
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        scores = query @ repeat_heads(key).transpose(2, 3) / math.sqrt(HEAD_WIDTH) + bias
        mixed = scores.softmax(-1) @ repeat_heads(value)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output, (key, value)


def split_heads(features: Tensor, heads: int) -> Tensor:
    """Maps [batch, sequence, heads * width] to [batch, heads, sequence, width]."""
    return features.unflatten(2, (heads, -1)).transpose(1, 2)


def repeat_heads(features: Tensor) -> Tensor:
    """Gives each head its keys or values: [batch, KEY_HEADS, ...] becomes [batch, HEADS, ...]."""
    return features[:, :, None].expand(-1, -1, HEADS // KEY_HEADS, -1, -1).flatten(1, 2)


def rotate(features: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turns each pair of channels by the angle of its position; shapes as in `Attention.forward`."""
    first, second = features.chunk(2, dim=-1)
    return features * rotation[0] + torch.cat((-second, first), dim=-1) * rotation[1]


class FeedForward(nn.Module):
    """A gated layer: silu(gate) * up, and back to the width."""

    def __init__(self, norm: RMSNorm) -> None:
        """Draws the three projections; `norm` is the normalization before them."""
        super().__init__()
        self.gate = Projection(WIDTH, HIDDEN).reads(norm)
        self.up = Projection(WIDTH, HIDDEN).reads(norm)
        self.down = Projection(HIDDEN, WIDTH, 1 / math.sqrt(2 * BLOCKS))

    def forward(self, features: Tensor) -> Tensor:
        """Maps [batch, sequence, WIDTH] to the same shape."""
        output: Tensor = self.down(functional.silu(self.gate(features)) * self.up(features))
        return output


class DecoderBlock(nn.Module):
    """Normalization and attention, normalization and gated layer, each added to what came in."""

    def __init__(self) -> None:
        """Builds one block."""
        super().__init__()
        self.attention_norm = RMSNorm(WIDTH)
        self.attention = Attention(self.attention_norm)
        self.feed_forward_norm = RMSNorm(WIDTH)
        self.feed_forward = FeedForward(self.feed_forward_norm)

    def forward(
        self, features: Tensor, rotation: tuple[Tensor, Tensor], bias: Tensor, past: Cache | None
    ) -> tuple[Tensor, Cache]:
        """Maps [batch, sequence, WIDTH] to the same shape, and returns the cache of this block."""
        mixed, present = self.attention(self.attention_norm(features), rotation, bias, past)
        features = features + mixed
        return features + self.feed_forward(self.feed_forward_norm(features)), present


class LanguageModel(nn.Module):
    """Embeddings of tokens, decoder blocks, and the scores of each token of the vocabulary to come next."""

    def __init__(self) -> None:
        """Draws every weight from torch's global generator."""
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(DecoderBlock() for _ in range(BLOCKS))
        self.norm = RMSNorm(WIDTH)
        self.head = Projection(WIDTH, VOCABULARY).reads(self.norm)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """Returns logits [batch, sequence, VOCABULARY].

        Args:
            input_ids: tokens, int64 [batch, sequence].
            attention_mask: 1 for tokens and 0 for padding, int64 [batch, sequence].
            position_ids: the position of each token, int64 [batch, sequence].
        """
        return self.continue_from(input_ids, attention_mask, position_ids, [None] * BLOCKS)[0]

    def continue_from(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past: Sequence[Cache | None],
    ) -> tuple[Tensor, list[Cache]]:
        """Returns the logits of the new tokens, and the cache of each block with the new tokens in it.

        Args:
            input_ids: the new tokens, int64 [batch, sequence].
            attention_mask: of the tokens before and the new ones, int64 [batch, past + sequence].
            position_ids: of the new tokens, int64 [batch, sequence].
            past: the cache of each block; None if there are no tokens before.
        """
        rotation = rotation_of(position_ids)
        bias = bias_of(attention_mask, input_ids.shape[1])
        features = self.embedding(input_ids)
        presents = []
        for block, before in zip(self.blocks, past, strict=True):
            features, present = block(features, rotation, bias, before)
            presents.append(present)
        logits: Tensor = self.head(self.norm(features))
        return logits, presents


def rotation_of(position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine of the positions [batch, sequence], each [batch, 1, sequence, HEAD_WIDTH]."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, HEAD_WIDTH, 2, dtype=torch.float32) / HEAD_WIDTH)
    angles = position_ids[:, None, :, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def bias_of(attention_mask: Tensor, new: int) -> Tensor:
    """Returns MASKED_SCORE where a token is padding or comes later, and 0 elsewhere, [batch, 1, new, all]."""
    slots = torch.arange(attention_mask.shape[1])
    readers = slots[slots.shape[0] - new :]
    readable = (slots <= readers[:, None]) & (attention_mask[:, None, None, :] > 0)
    return torch.where(readable, 0.0, MASKED_SCORE)


def build() -> nn.Module:
    """Returns the network with random weights; `model.safetensors` holds its trained state dict."""
    return LanguageModel()
