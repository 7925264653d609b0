"""What is known of the channels of a graph while its nodes are read one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import rank_of
from ptq_cli.models.rescaling.channel_ids import ChannelIds, Ids


@dataclass(frozen=True, kw_only=True)
class ScaledConstant:
    """A constant that is multiplied or divided by the factors of channels.

    Attributes:
        node, index: where it is read.
        times: channels whose factors it is multiplied by.
        over: channels whose factors it is divided by.

    Shapes:
        times, over: broadcast to the constant, or it to them.
    """

    node: ir.Node
    index: int
    times: Ids | None = None
    over: Ids | None = None


@dataclass(frozen=True, kw_only=True)
class ScaledLayer:
    """A layer with a weight, or another node that makes channels.

    Attributes:
        node: the layer.
        taken: the channel of each index that its weight is multiplied with; none of a normalization.
        given: the channel of each of its outputs.
        weight: which input its weight is; None of what has no matrix of weights.
    """

    node: ir.Node
    taken: Ids
    given: Ids
    weight: int | None = 1


class ScaleTrace:
    """The channels of each value that was reached, and the constants that would take their factors.

    Attributes:
        channels: which of them share a factor.
        constants: what takes the factors.
        layers: what makes channels, in graph order.
        tables: the matrices that Gathers look rows up in.
    """

    def __init__(self, tables: Sequence[ir.Value] = ()) -> None:
        """Begin before the first node."""
        self.tables = tables
        self.channels = ChannelIds()
        self.constants: list[ScaledConstant] = []
        self.layers: list[ScaledLayer] = []
        self._ids: dict[ir.Value, Ids] = {}

    def of(self, value: ir.Value) -> Ids:
        """Return the channels of a value; what is unknown stays as it is.

        Shapes:
            as many axes as the value has, each of its size or of 1.
        """
        if value in self._ids:
            return self._ids[value]
        return np.zeros((1,) * (rank_of(value) or 0), np.int64)

    def note(self, value: ir.Value, ids: Ids) -> None:
        """Say what the channels of a value are, or fix them where its number of axes is unknown."""
        if rank_of(value) == ids.ndim:
            self._ids[value] = compact(ids)
        else:
            self.channels.fix(ids)

    def values(self) -> Iterator[tuple[ir.Value, Ids]]:
        """Yield the values that were reached, in graph order, with their channels."""
        yield from self._ids.items()

    def is_fixed(self, ids: Ids) -> bool:
        """Tell whether none of the channels may have a factor."""
        return not self.channels.roots(ids).any()


def compact(ids: Ids) -> Ids:
    """Return channels with axes of 1 where they do not vary.

    Example:
        >>> compact(np.array([[1, 1], [2, 2]])).tolist()
        [[1], [2]]
    """
    for axis, size in enumerate(ids.shape):
        first = ids.take([0], axis=axis) if size > 1 else ids
        if size > 1 and np.array_equal(np.broadcast_to(first, ids.shape), ids):
            ids = first
    return ids


def along(ids: Ids, axis: int, size: int) -> Ids | None:
    """Return the channel of each index along one axis, or None if channels vary along others.

    Shapes:
        the result (size,).

    Example:
        >>> along(np.array([[[4]], [[5]]]), 0, 2).tolist(), along(np.array([[4, 5]]), 0, 3) is None
        ([4, 5], True)
    """
    axis %= max(ids.ndim, 1)
    if not ids.ndim or ids.shape[axis] not in (1, size) or ids.size != ids.shape[axis]:
        return None
    return np.broadcast_to(ids.reshape(-1), (size,))


def varies(ids: Ids, axes: Sequence[int]) -> bool:
    """Tell whether channels differ along one of some axes."""
    return any(ids.shape[axis] != 1 for axis in axes)
