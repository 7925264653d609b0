"""Channels that must be multiplied by the same factor: numbered, joined, grouped, and given factors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.models.graph_reading import FreshNames, input_at, rank_of
from ptq_cli.models.preparing.rewriting import floats_of, set_constant

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
        self._parents = [FIXED]

    def __len__(self) -> int:
        """Return how many numbers were given."""
        return len(self._parents)

    def fresh(self, count: int) -> Ids:
        """Return new channels.

        Shapes: the result (count,).
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


@dataclass(frozen=True, kw_only=True)
class ScaledConstant:
    """An input of a node that is multiplied by the factors of channels, and divided by those of others."""

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
    """The channels of each value that was reached, and the constants that would take their factors."""

    def __init__(self, tables: Sequence[ir.Value] = ()) -> None:
        self.tables = tables
        self.channels = ChannelIds()
        self.constants: list[ScaledConstant] = []
        self.layers: list[ScaledLayer] = []
        self._ids: dict[ir.Value, Ids] = {}

    def of(self, value: ir.Value) -> Ids:
        """Return the channels of a value; what is unknown stays as it is.

        Shapes: as many axes as the value has, each of its size or of 1.
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
    """Return channels with axes of 1 where they do not vary."""
    for axis, size in enumerate(ids.shape):
        first = ids.take([0], axis=axis) if size > 1 else ids
        if size > 1 and np.array_equal(np.broadcast_to(first, ids.shape), ids):
            ids = first
    return ids


def along(ids: Ids, axis: int, size: int) -> Ids | None:
    """Return the channel of each index along one axis, or None if channels vary along others.

    Shapes: the result (size,).
    """
    axis %= max(ids.ndim, 1)
    if not ids.ndim or ids.shape[axis] not in (1, size) or ids.size != ids.shape[axis]:
        return None
    return np.broadcast_to(ids.reshape(-1), (size,))


def varies(ids: Ids, axes: Sequence[int]) -> bool:
    """Tell whether channels differ along one of some axes."""
    return any(ids.shape[axis] != 1 for axis in axes)


NO_CHANNEL = -1
_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class HeldChannels:
    """A value or a layer with channels along an axis: by index, the place in a space, or ``NO_CHANNEL``."""

    name: str
    axis: int
    channels: Ids


@dataclass(frozen=True, kw_only=True)
class ScaleSpace:
    """Channels of a graph that may get factors, by their number in the trace: who makes and reads them.

    Attributes:
        through: operators that make them which are not layers, in which a reader of messages sees what kind
            of space it is; and ``MatMul`` if they pass through a product of two computed values.
    """

    roots: Ids
    makers: tuple[str, ...]
    readers: tuple[HeldChannels, ...]
    held: tuple[HeldChannels, ...]
    through: frozenset[str]


def scale_spaces(trace: ScaleTrace) -> list[ScaleSpace]:
    """Return the spaces with at least two channels, one maker and one reader, in graph order."""
    given = [trace.channels.roots(layer.given) for layer in trace.layers]
    groups = _given_together(given, len(trace.channels))
    tops = [groups.roots(roots).max(initial=FIXED) for roots in given]
    order = list(dict.fromkeys(top for top in tops if top != FIXED))
    values = [
        (value, axis, groups.roots(roots), roots)
        for value, ids in trace.values()
        if (axis := _only_axis(ids)) is not None and (roots := trace.channels.roots(ids).reshape(-1)).any()
    ]
    taken = [(layer, trace.channels.roots(layer.taken)) for layer in trace.layers if len(layer.taken)]
    makers_of = _by_top(
        (top, (layer, roots)) for layer, roots, top in zip(trace.layers, given, tops, strict=True)
    )
    readers_of = _by_top((top, item) for item in taken for top in np.unique(groups.roots(item[1])))
    values_of = _by_top((top, item) for item in values for top in np.unique(item[2]))
    products = _passed_by_products(trace)
    spaces = []
    for top in order:
        makers = makers_of[top]
        found = np.unique(np.concatenate([roots[groups.roots(roots) == top] for _, roots in makers]))
        readers = [_held(layer.node.name, 0, roots, found) for layer, roots in readers_of.get(top, ())]
        held = [_held(value.name, axis, roots, found) for value, axis, _, roots in values_of.get(top, ())]
        if len(found) > 1 and readers:
            spaces.append(
                ScaleSpace(
                    roots=found,
                    makers=tuple(layer.node.name or "" for layer, _ in makers),
                    readers=tuple(readers),
                    held=tuple(held),
                    through=_through([layer for layer, _ in makers], products, found),
                )
            )
    return spaces


def _given_together(given: Sequence[Ids], channels: int) -> ChannelIds:
    """Return which of so many channels are in one group, because a layer makes them together."""
    groups = ChannelIds()
    groups.fresh(channels)
    for roots in given:
        free = roots[roots != FIXED]
        if len(free):
            groups.join(free[:1], free)
    return groups


def _held(name: str | None, axis: int, roots: Ids, found: Ids) -> HeldChannels:
    return HeldChannels(name=name or "", axis=axis, channels=_places(roots, found))


def _by_top(items: Iterable[tuple[int, _Item]]) -> dict[int, list[_Item]]:
    found: dict[int, list[_Item]] = {}
    for top, item in items:
        found.setdefault(int(top), []).append(item)
    return found


def _through(makers: Sequence[ScaledLayer], products: set[int], found: Ids) -> frozenset[str]:
    kinds = {layer.node.op_type for layer in makers if layer.weight is None}
    return frozenset(kinds | ({"MatMul"} if products & set(found.tolist()) else set()))


def _passed_by_products(trace: ScaleTrace) -> set[int]:
    """Return the channels that pass through a MatMul of two computed values."""
    layers = {layer.node for layer in trace.layers}
    found: set[int] = set()
    for value, ids in trace.values():
        node = value.producer()
        if node is not None and node.op_type == "MatMul" and node not in layers:
            found |= set(trace.channels.roots(ids).reshape(-1).tolist())
    return found


def _only_axis(ids: Ids) -> int | None:
    axes = [axis for axis, size in enumerate(ids.shape) if size != 1]
    return axes[0] if len(axes) == 1 and along(ids, axes[0], ids.size) is not None else None


def _places(roots: Ids, found: Ids) -> Ids:
    places = np.minimum(np.searchsorted(found, roots), len(found) - 1)
    return np.where(found[places] == roots, places, NO_CHANNEL)


def rescale(graph: ir.Graph, trace: ScaleTrace, factors: Mapping[int, float]) -> int:
    """Multiply channels where they are made and divide them where they are read; return how many constants.

    Requires: ``trace`` is that of the graph as it is. Ensures: the outputs of the graph are what they were,
    to rounding; no node was added. ``factors`` are positive, by a channel's root; 1 where there is none.
    """
    if not all(0.0 < factor < np.inf for factor in factors.values()):
        raise ValueError("a factor is a positive number")
    table = np.ones(len(trace.channels))
    for root, factor in factors.items():
        table[root] = factor
    names = FreshNames.of(graph)
    return sum(_scale(item, trace, table, names) for item in trace.constants)


def _scale(item: ScaledConstant, trace: ScaleTrace, table: Factors, names: FreshNames) -> bool:
    value = input_at(item.node, item.index)
    array = floats_of(value)
    times, over = (
        table[trace.channels.roots(ids)] if ids is not None else np.ones(1) for ids in (item.times, item.over)
    )
    if value is None or array is None or (np.all(times == 1.0) and np.all(over == 1.0)):
        return False
    scaled = (array.astype(np.float64) * times / over).astype(array.dtype)
    if scaled.shape != array.shape:  # A number for all becomes one for each channel, and no more than that.
        for axis in range(scaled.ndim):
            first = scaled.take([0], axis=axis)
            scaled = first if np.array_equal(np.broadcast_to(first, scaled.shape), scaled) else scaled
    set_constant(item.node, item.index, scaled, value.name or "", names)
    return True
