"""Numbers for channels: those that must be multiplied by the same factor are joined."""

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]  # numbers of channels, in a shape that broadcasts to the tensor's
Factors = npt.NDArray[np.float64]
FIXED = 0  # stands for whatever must stay as it is


class ChannelIds:
    """A union of sets of channels.

    Example:
        >>> channels = ChannelIds()
        >>> one, other = channels.fresh(3), channels.fresh(3)
        >>> channels.join(one, other)
        >>> channels.fix(other[:1])
        >>> channels.roots(one).tolist(), channels.roots(other).tolist()
        ([0, 2, 3], [0, 2, 3])
    """

    def __init__(self) -> None:
        """Begin with no channels."""
        self._parents = [FIXED]

    def __len__(self) -> int:
        """Return how many numbers were given."""
        return len(self._parents)

    def fresh(self, count: int) -> Ids:
        """Return new channels.

        Shapes:
            the result (count,).
        """
        first = len(self._parents)
        self._parents += range(first, first + count)
        return np.arange(first, first + count)

    def join(self, one: Ids, other: Ids) -> None:
        """Join channels, which then share a factor; the two arrays broadcast."""
        pairs = np.stack([array.reshape(-1) for array in np.broadcast_arrays(one, other)])
        for left, right in np.unique(pairs, axis=1).T.tolist():
            low, high = sorted((self._top(left), self._top(right)))
            self._parents[high] = low

    def fix(self, ids: Ids) -> None:
        """Fix channels, which then stay as they are."""
        self.join(ids, np.full(1, FIXED))

    def roots(self, ids: Ids) -> Ids:
        """Return one number for all channels that share a factor; ``FIXED`` for those that have none."""
        found, places = np.unique(ids, return_inverse=True)
        return np.array([self._top(item) for item in found.tolist()], np.int64)[places].reshape(ids.shape)

    def _top(self, item: int) -> int:
        while self._parents[item] != item:
            self._parents[item] = self._parents[self._parents[item]]
            item = self._parents[item]
        return item
