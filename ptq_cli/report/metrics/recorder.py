"""What each sample added to a metric, in the order of the set; it can be saved and continued."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[Any]
"""One for each sample, or for each pair of samples."""

State = dict[str, Rows]
"""Arrays by name, from which a metric goes on: what a checkpoint holds of it."""


def below(state: State, prefix: str) -> State:
    """Return what a state holds under the keys that begin so, without that beginning.

    Example:
        >>> below({"0/rows": np.ones(1), "1/rows": np.ones(2)}, "1/")
        {'rows': array([1., 1.])}
    """
    return {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}


class Recorder:
    """Rows that grow batch by batch.

    Example:
        >>> recorder = Recorder()
        >>> recorder.add(np.array([[1.0], [2.0]]))
        >>> recorder.add(np.array([[3.0]]))
        >>> len(recorder), recorder.rows.ravel().tolist()
        (3, [1.0, 2.0, 3.0])
    """

    def __init__(self) -> None:
        self._parts: list[Rows] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Rows) -> None:
        """Append rows, which are not copied: they must be nobody else's."""
        self._parts.append(rows)
        self._count += len(rows)

    @property
    def rows(self) -> Rows:
        """All rows so far; an empty array before the first."""
        if not self._parts:
            return np.empty((0, 0))
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def state(self) -> State:
        """Return what a checkpoint holds."""
        return {"rows": self.rows}

    def load_state(self, state: State) -> None:
        """Go on from what a checkpoint held."""
        self.join([state])

    def join(self, states: Sequence[State]) -> None:
        """Go on from the rows of several parts, one after the other."""
        self._parts = [state["rows"] for state in states if len(state["rows"])]
        self._count = sum(map(len, self._parts))


class Recorded:
    """A metric whose state is its rows."""

    def __init__(self) -> None:
        self._recorder = Recorder()

    def state(self) -> State:
        """Return what a checkpoint holds."""
        return self._recorder.state()

    def load_state(self, state: State) -> None:
        """Go on from what a checkpoint held."""
        self._recorder.load_state(state)

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set, which changes no row."""

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was recorded of all parts of a set, in their order."""
        self._recorder.join(states)
