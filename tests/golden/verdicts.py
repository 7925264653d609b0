"""How the replay of one recorded case can end."""

from collections.abc import Mapping
from typing import Any

import numpy as np

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
