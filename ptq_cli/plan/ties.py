"""Ties: tensors that share a scale and zero point, and those whose statistics decide them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Groups:
    """Tensors that share parameters.

    Attributes:
        sources: by tensor, the tensor that its group is named after: the group's first measured tensor.
        unions: by source, the tensors whose statistics decide together, if there are several.
    """

    sources: Mapping[str, str]
    unions: Mapping[str, tuple[str, ...]]


class Ties:
    """Collects which tensors must have equal parameters, in any order.

    Values that are only moved do not need their own statistics, because their source has them. Where an
    operator ties its inputs and outputs, each is measured, and the union of the values decides.
    """

    def __init__(self) -> None:
        self._moved: dict[str, str] = {}
        self._tied: list[tuple[str, ...]] = []

    def move(self, output: str, source: str) -> None:
        """Note that ``output`` holds only values of ``source``."""
        self._moved[output] = source

    def tie(self, names: Iterable[str]) -> None:
        """Note that the quantized ones among them share one scale and zero point; one of them is."""
        self._tied.append(tuple(names))

    def groups(self, order: Iterable[str]) -> Groups:
        """Return the groups of the tensors in ``order``; a tensor comes after those that it is made from."""
        roots: dict[str, str] = {}
        for name in order:
            moved_from = self._moved.get(name)
            roots[name] = roots[moved_from] if moved_from is not None else name
        place = {name: index for index, name in enumerate(roots)}
        parents = {name: name for name in roots}
        for names in self._tied:
            tops = {_top(parents, roots[name]) for name in names if name in roots}
            first, *others = sorted(tops, key=place.__getitem__)
            parents.update(dict.fromkeys(others, first))
        members: dict[str, list[str]] = {}
        for name, root in roots.items():
            if name == root:
                members.setdefault(_top(parents, name), []).append(name)
        unions = {source: tuple(found) for source, found in members.items() if len(found) > 1}
        return Groups({name: _top(parents, root) for name, root in roots.items()}, unions)


def _top(parents: dict[str, str], name: str) -> str:
    while parents[name] != name:
        parents[name] = parents[parents[name]]  # halves the path, so that long chains are cheap
        name = parents[name]
    return name
