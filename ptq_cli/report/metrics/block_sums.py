"""Sums over blocks of samples that do not depend on how the samples were batched or shared out."""

import numpy as np

from ptq_cli.report.intervals.bootstrap import Float64Array
from ptq_cli.report.metrics.recorder import State


class BlockSums:
    """Sums of rows over blocks of samples, of which there are at most ``most``.

    A block is 2ᴸ samples, for the smallest L with which there are no more blocks. Its sum is that of its two
    halves, and so on down to single samples: the order in which numbers are added is given by the places of
    the samples in the set alone. What several processes have summed is therefore the same to the last bit.

    Args:
        most: blocks, at least 1.

    Shapes:
        a row is [2, channels]; rows may differ in the number of channels, and missing ones count as 0.

    Units:
        the rows' own.

    Edge case:
        Without a sample there is no block.

    Source:
        Higham 2002, "Accuracy and stability of numerical algorithms", section 4.2 (pairwise summation).

    Example:
        >>> sums = BlockSums(most=2)
        >>> sums.add(np.arange(10.0).reshape(5, 2, 1))
        >>> sums.blocks().ravel().tolist(), sums.samples_per_block
        ([12.0, 16.0, 8.0, 9.0], 4)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._next = 0
        self._level = 0
        self._nodes: dict[tuple[int, int], Float64Array] = {}
        """Sums of 2ˡ samples by l and the number of the block of that size; halves of a block are joined."""

    def __len__(self) -> int:
        """How many samples the set has, as far as is known."""
        return self._next

    @property
    def samples_per_block(self) -> int:
        """How many samples are in a block; fewer in the last one."""
        return 1 << self._level

    def start_at(self, sample: int) -> None:
        """Take the next row for that of this sample: those before are summed elsewhere."""
        self._next = sample

    def add(self, rows: Float64Array) -> None:
        """Add the rows of the next samples.

        Shapes:
            rows [n, 2, channels].
        """
        first, level = self._next, 0
        self._reach(first + len(rows))
        while level < self._level and len(rows):
            if first % 2:
                self._put(level, first, rows[0].copy())
                first, rows = first + 1, rows[1:]
            if len(rows) % 2:
                self._put(level, first + len(rows) - 1, rows[-1].copy())
                rows = rows[:-1]
            first, level, rows = first // 2, level + 1, rows[0::2] + rows[1::2]
        for offset, row in enumerate(rows):
            self._put(level, first + offset, row)

    def blocks(self) -> Float64Array:
        """Return the sum of each block.

        Shapes:
            [blocks, 2, channels], with the most channels that a row had.
        """
        count = -(-self._next // self.samples_per_block)
        width = max((node.shape[1] for node in self._nodes.values()), default=0)
        found = np.zeros((count, 2, width))
        rest = dict(self._nodes)
        for level in range(self._level):
            for _, index in sorted(place for place in rest if place[0] == level):
                node, above = rest.pop((level, index)), (level + 1, index // 2)
                rest[above] = _sum(rest[above], node) if above in rest else node
        for (_, index), node in rest.items():
            found[index, :, : node.shape[1]] = node
        return found

    def state(self) -> State:
        """Return what a checkpoint holds."""
        width = max((node.shape[1] for node in self._nodes.values()), default=0)
        nodes = np.zeros((len(self._nodes), 2, width))
        for row, node in zip(nodes, self._nodes.values(), strict=True):
            row[:, : node.shape[1]] = node
        places = np.array(list(self._nodes), np.int64).reshape(-1, 2)
        return {"nodes": nodes, "places": places, "reached": np.array([self._next, self.most])}

    def load_state(self, state: State) -> None:
        """Go on from what a checkpoint held."""
        self.join([state])

    def join(self, states: list[State]) -> None:
        """Go on from what was summed of all parts of a set, the first of them first.

        Raises:
            ValueError: one has blocks of more samples than the whole set has.
        """
        self._nodes, self._level = {}, 0
        self.most = int(states[0]["reached"][1])
        self._next = max(int(state["reached"][0]) for state in states)
        while self._next > self.most << self._level:
            self._level += 1
        for state in states:
            for (level, index), node in zip(state["places"].tolist(), state["nodes"], strict=True):
                if level > self._level:
                    raise ValueError(f"a block is of {1 << level} samples, not of {self.samples_per_block}")
                self._put(level, index, node)

    def _reach(self, samples: int) -> None:
        """Make the blocks so large that there are few enough of so many samples."""
        self._next = samples
        while samples > self.most << self._level:
            level, self._level = self._level, self._level + 1
            for place in [place for place in self._nodes if place[0] == level]:
                if place in self._nodes:
                    self._put(*place, self._nodes.pop(place))

    def _put(self, level: int, index: int, row: Float64Array) -> None:
        while level < self._level:
            other = self._nodes.pop((level, index ^ 1), None)
            if other is None:
                break
            level, index, row = level + 1, index // 2, _sum(other, row)
        self._nodes[level, index] = row


def _sum(one: Float64Array, other: Float64Array) -> Float64Array:
    """Return the sum of two nodes, where the narrower one has zeros for the channels that it lacks."""
    if one.shape == other.shape:
        return one + other
    narrow, wide = sorted((one, other), key=lambda node: node.shape[1])
    found = wide.copy()
    found[:, : narrow.shape[1]] += narrow
    return found
