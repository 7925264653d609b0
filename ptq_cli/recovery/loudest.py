"""What makes nearly all of the noise: only that is worth further runs."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Any)


def loudest(shares: Mapping[Name, float], most: int, quiet: float) -> list[Name]:
    """Return what makes all but a share of the noise, and at most so many, in the order given.

    Args:
        shares: of the noise, by name; they need not add up to 1.
        most: how many to return.
        quiet: the share of all noise that may be left out.

    Edge case:
        Noise that is not finite is loud.

    Example:
        >>> loudest({"a": 1.0, "b": 0.0001, "c": 5.0}, 9, quiet=0.01)
        ['a', 'c']
    """
    sizes = {name: share if math.isfinite(share) else math.inf for name, share in shares.items()}
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    total = sum(share for share in sizes.values() if math.isfinite(share))
    kept, left = set(), total
    for name in order[:most]:
        if math.isfinite(sizes[name]) and left <= quiet * total:
            break
        kept.add(name)
        left -= sizes[name] if math.isfinite(sizes[name]) else 0.0
    return [name for name in shares if name in kept]
