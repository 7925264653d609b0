"""A small transformer encoder that names a spoken digit from log-mel frames.

Pre-LayerNorm blocks (Xiong et al., 2020) of multi-head attention and a GELU feed-forward network. A second
input marks speech frames: attention adds a large negative bias to padding, and pooling leaves padding out.
"""

import math

import torch
from torch import Tensor, nn

FRAMES = 64
MELS = 40
CLASSES = 10
MASKED_SCORE = -1e4


class Attention(nn.Module):
    """Multi-head self-attention written as plain projections, matrix products and a softmax."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        """Splits `width` into `heads` equal parts."""
        super().__init__()
        self.heads = heads
        self.scale = 1 / math.sqrt(width // heads)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.softmax = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, bias: Tensor) -> Tensor:
        """Maps [batch, frames, width] to the same shape; `bias` [batch, 1, 1, frames] masks the scores."""
        query = self._split(self.query(features))
        key = self._split(self.key(features))
        value = self._split(self.value(features))
        scores = query @ key.transpose(-2, -1) * self.scale + bias
        mixed = self.dropout(self.softmax(scores)) @ value
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _split(self, features: Tensor) -> Tensor:
        # reshape and not unflatten: the TorchScript exporter keeps track of its rank.
        batch, frames, width = features.shape
        return features.reshape(batch, frames, self.heads, width // self.heads).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        """Widens to `hidden` and comes back."""
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(hidden, width)


class EncoderBlock(nn.Module):
    """LayerNorm and attention, LayerNorm and feed-forward, each added to what came in."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        """Builds one block of the encoder."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, hidden, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, bias: Tensor) -> Tensor:
        """Maps [batch, frames, width] to the same shape."""
        features = features + self.dropout(self.attention(self.attention_norm(features), bias))
        output: Tensor = features + self.dropout(self.feed_forward(self.feed_forward_norm(features)))
        return output


class SpokenDigitTransformer(nn.Module):
    """Frame embedding, learned positions, encoder blocks, masked mean over time, classifier."""

    def __init__(
        self, width: int = 128, heads: int = 4, hidden: int = 256, blocks: int = 3, dropout: float = 0.1
    ) -> None:
        """Initialises every weight from torch's global generator."""
        super().__init__()
        self.embedding = nn.Linear(MELS, width)
        self.position = nn.Parameter(torch.randn(FRAMES, width) * 0.02)
        self.encoder = nn.ModuleList(EncoderBlock(width, heads, hidden, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Returns logits [batch, 10].

        Args:
            features: log-mel energies, float32 [batch, frames, mels].
            mask: 1 for speech frames (at least one) and 0 for padding, float32 [batch, frames].
        """
        bias = ((1 - mask) * MASKED_SCORE)[:, None, None, :]
        hidden = self.embedding(features) + self.position
        for block in self.encoder:
            hidden = block(hidden, bias)
        weight = mask / mask.sum(dim=1, keepdim=True)
        pooled = (self.norm(hidden) * weight[:, :, None]).sum(dim=1)
        logits: Tensor = self.classifier(pooled)
        return logits


def build() -> nn.Module:
    """Returns the network with random weights; `model.pt` holds its trained state dict."""
    return SpokenDigitTransformer()
