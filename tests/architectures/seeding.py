"""Weights from a seed, and statistics of BatchNorm as training leaves them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def seeded(make: Callable[[], nn.Module], *example: Tensor) -> nn.Module:
    """Return a module with weights from a seed, its BatchNorms settled on an example."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
        for norm in [item for item in module.modules() if isinstance(item, nn.BatchNorm1d | nn.BatchNorm2d)]:
            norm.momentum = None  # the plain mean of what it sees
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, 0.0, 0.2)
        if example:
            with torch.no_grad():
                module.train()(*example)
    return module.eval()


def noise(*shape: int) -> Tensor:
    """Return Gaussian noise that is the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))
