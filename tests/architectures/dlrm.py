"""DLRM: dense features and embedding tables, their dot products, a perceptron (https://arxiv.org/abs/1906.00091)."""

import torch
from torch import Tensor, nn

from tests.architectures.seeding import seeded

DENSE, TABLES, ROWS, WIDTH = 13, 4, 100, 16


class Dlrm(nn.Module):
    """A click's logit."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(ROWS, WIDTH) for _ in range(TABLES)])
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, WIDTH), nn.ReLU())
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(nn.Linear(WIDTH + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        rows, columns = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        self.register_buffer("pairs", rows * (TABLES + 1) + columns)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.stack([x] + [table(sparse[:, i]) for i, table in enumerate(self.tables)], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products[:, self.get_buffer("pairs")]], dim=1))


def build() -> nn.Module:
    return seeded(Dlrm)
