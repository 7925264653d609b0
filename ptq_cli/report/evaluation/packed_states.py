"""States of many batches as a few arrays, and back: what a file of a part holds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.report.metrics.recorder import State

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class PackedKey:
    """The arrays of a key of all states that have the same dtype and rank."""

    key: str
    dtype: str
    rank: int


def pack_states(states: Sequence[State]) -> tuple[tuple[PackedKey, ...], dict[str, npt.NDArray[Any]]]:
    """Return all states as arrays of rank 1, with the keys that they are of.

    Example:
        >>> keys, arrays = pack_states([{"rows": np.ones((2, 1))}, {"rows": np.zeros((1, 1))}])
        >>> keys
        (PackedKey(key='rows', dtype='float64', rank=2),)
        >>> {name: array.tolist() for name, array in arrays.items()}
        {'0.at': [0, 1], '0.shapes': [2, 1, 1, 1], '0.values': [1.0, 1.0, 0.0]}
    """
    found: dict[PackedKey, list[tuple[int, npt.NDArray[Any]]]] = {}
    for index, state in enumerate(states):
        for key, array in state.items():
            found.setdefault(PackedKey(key, array.dtype.name, array.ndim), []).append((index, array))
    arrays: dict[str, npt.NDArray[Any]] = {}
    for number, parts in enumerate(found.values()):
        arrays[f"{number}.at"] = np.array([index for index, _ in parts], np.int64)
        arrays[f"{number}.shapes"] = np.array([array.shape for _, array in parts], np.int64).reshape(-1)
        arrays[f"{number}.values"] = np.concatenate([array.reshape(-1) for _, array in parts])
    return tuple(found), arrays


def unpack_states(keys: Sequence[PackedKey], arrays: Arrays, count: int) -> list[State]:
    """Return the states that ``pack_states`` packed.

    Args:
        keys: as it returned them.
        arrays: as it returned them; a file from outside may hold anything.
        count: how many states there are.

    Raises:
        ValueError: the arrays cannot have been written by it.
        KeyError: one is missing.

    Example:
        >>> unpack_states(*pack_states([{"a": np.ones(1)}, {}]), 2)
        [{'a': array([1.])}, {}]
    """
    states: list[State] = [{} for _ in range(count)]
    for number, packed in enumerate(keys):
        at, shapes, values = (arrays[f"{number}.{name}"] for name in ("at", "shapes", "values"))
        if values.dtype.name != packed.dtype or at.dtype != np.int64 or shapes.dtype != np.int64:
            raise ValueError(f"'{packed.key[:80]}' has another type than its header says")
        if packed.rank < 0 or len(shapes) != packed.rank * len(at) or (shapes < 0).any():
            raise ValueError(f"'{packed.key[:80]}' has shapes that are none")
        start = 0
        for index, shape in zip(at.tolist(), shapes.reshape(len(at), packed.rank).tolist(), strict=True):
            end = start + math.prod(shape)
            if not 0 <= index < count or packed.key in states[index] or end > len(values):
                raise ValueError(f"'{packed.key[:80]}' does not fit its batches")
            states[index][packed.key] = values[start:end].reshape(shape)
            start = end
    return states
