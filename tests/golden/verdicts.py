"""How the replay of one recorded case can end."""

import builtins
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

Case = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]


class DiffersError(Exception):
    """Ours is not what was recorded."""


class OnPurposeError(Exception):
    """Ours is not what was recorded, and must not be: the text is the reason's name."""


class NotCoveredError(Exception):
    """ptq has nothing that does this."""


def require(holds: object, text: str) -> None:
    """Raise if a condition does not hold."""
    if not holds:
        raise DiffersError(text)


def kind_of(case: Case) -> type[Exception]:
    """Return the exception class that the reference raised."""
    kind: type[Exception] = getattr(builtins, case["raises"])
    return kind


def compare(name: str, ours: torch.Tensor | None, recorded: np.ndarray, relative: float = 1e-6) -> None:
    """Raise if values differ by more than ``relative``, or at all where those recorded are integers."""
    require(ours is not None, f"{name} is missing")
    array = ours.detach().float().numpy()
    require(array.shape == recorded.shape, f"{name} has shape {array.shape}, recorded is {recorded.shape}")
    exact = np.array_equal(recorded, np.rint(recorded))
    near = np.isclose(array, recorded, rtol=0 if exact else relative, atol=0, equal_nan=True)
    require(near.all(), f"{np.count_nonzero(~near)} of {near.size} values of {name} differ")
