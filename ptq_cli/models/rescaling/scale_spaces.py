"""Channels that are made and read together, so that their factors are chosen together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ptq_cli.models.rescaling.channel_ids import FIXED, ChannelIds, Ids
from ptq_cli.models.rescaling.scale_trace import ScaledLayer, ScaleTrace, along

NO_CHANNEL = -1
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class HeldChannels:
    """A value or a layer's input with channels of a space.

    Attributes:
        name: of the value, or of the layer's node.
        axis: along which the value has them.
        channels: of each index, which channel of the space it is; ``NO_CHANNEL`` where it is of another.
    """

    name: str
    axis: int
    channels: Ids


@dataclass(frozen=True, kw_only=True)
class ScaleSpace:
    """Channels of a graph that may get factors.

    Attributes:
        roots: the number of each channel in the trace.
        makers: names of the nodes that make them.
        readers: the layers that are divided by the factors.
        held: the values that hold them along one axis, in graph order.
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


def _by_top(items: Iterable[tuple[int, Item]]) -> dict[int, list[Item]]:
    found: dict[int, list[Item]] = {}
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
