"""Layers as a tree of their modules, short enough to read however many layers there are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_PARTS = re.compile(r"[^./]+[./]?|[./]")
_NUMBERS = re.compile(r"[0-9]+")
NAMED = re.compile(r"'[^']*'|(?<=part of )\S+|(?<=bias of )[^\s,]+")
LONGEST_PERIOD = 64  # most nodes of a repeated block that has no name of its own
MOST_TREE_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class TreeLayer:
    """A layer as the tree shows it.

    Attributes:
        placed: what it computes in, such as ``"uint8 x int8"`` or ``"float"``.
        reason: why it does not, or what it is part of.
        constants: how many parameters it reads from each constant.
    """

    name: str
    op: str
    output: str
    parameters: int
    multiply_accumulates: int | None
    placed: str
    integer: bool
    reason: str
    constants: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TreeRow:
    """A line of the tree: a layer, a module with its totals, or several that are equal."""

    depth: int
    label: str
    layers: int
    layer: TreeLayer | None
    parameters: int
    multiply_accumulates: int
    integers: int


@dataclass
class _Module:
    label: str
    layer: TreeLayer | None = None
    children: "dict[tuple[str, bool], _Module]" = field(default_factory=dict)

    def leaves(self) -> Iterator[TreeLayer]:
        if self.layer is not None:
            yield self.layer
        for child in self.children.values():
            yield from child.leaves()


def layer_tree(layers: Sequence[TreeLayer], depth: int | None = None) -> tuple[list[TreeRow], int | None]:
    """Tree of layers, and the depth that it is cut at.

    Equal blocks that follow one another are shown once: modules whose names differ only by a number, and
    runs of layers that repeat. Blocks are equal if operators, sizes, placement and reasons are.

    The tree goes as deep as fits into 60 lines, or ``depth`` modules; deeper ones are added up.

    Edge case: At depth 1 there may be more than 60 lines, for a graph without modules and without repetition.
    """
    root = _build(layers)
    if depth is not None:
        return list(_rows(root, depth)), depth
    deepest = 1
    rows = list(_rows(root, None))
    if len(rows) <= MOST_TREE_ROWS:
        return rows, None
    rows = list(_rows(root, 1))
    while True:
        further = list(_rows(root, deepest + 1))
        if len(further) > MOST_TREE_ROWS or len(further) == len(rows):
            return rows, deepest
        rows, deepest = further, deepest + 1


def _build(layers: Sequence[TreeLayer]) -> _Module:
    root = _Module("")
    for layer in layers:
        here = root
        parts = _PARTS.findall(layer.name) or [layer.name]
        for part in parts[:-1]:
            # A dot and a slash separate modules alike: "0.conv" and "0/Add" are both in module "0".
            here = here.children.setdefault((part.rstrip("./"), False), _Module(part))
        # A module and a layer may have the same name; in a hostile file, two layers may.
        label, key = parts[-1], (parts[-1], True)
        while key in here.children:
            key = (key[0] + " ", True)
        here.children[key] = _Module(label, layer)
    return _joined(root)


def _joined(module: _Module) -> _Module:
    """Join a module with its only child."""
    children = {key: _joined(child) for key, child in module.children.items()}
    if module.label and len(children) == 1:
        (child,) = children.values()
        return _Module(module.label + child.label, child.layer, child.children)
    return _Module(module.label, module.layer, children)


_Signature = tuple[object, ...]


def _signature(module: _Module) -> _Signature:
    label = _NUMBERS.sub("#", module.label)
    if module.layer is not None:
        layer = module.layer
        sizes = (layer.output, layer.parameters, layer.multiply_accumulates)
        return (label, layer.op, *sizes, layer.placed, NAMED.sub("", layer.reason))
    return (label, *(_signature(child) for child in module.children.values()))


def _rows(module: _Module, depth: int | None, level: int = 0) -> Iterator[TreeRow]:
    children = list(module.children.values())
    numbers: dict[_Signature, int] = {}
    signs = [numbers.setdefault(_signature(child), len(numbers)) for child in children]
    start = 0
    while start < len(children):
        period, times = _repeated(signs, start)
        block = children[start : start + period]
        whole = children[start : start + period * times]
        start += period * times
        if times == 1 or period == 1:
            yield _row(whole, level)
            if block[0].layer is None and (depth is None or level + 1 < depth):
                yield from _rows(block[0], depth, level + 1)
            continue
        yield _row(whole, level, f"{times} times")
        if depth is None or level + 1 < depth:
            yield from _rows(
                _Module("", None, {(item.label, True): item for item in block}), depth, level + 1
            )


def _repeated(signs: Sequence[int], start: int) -> tuple[int, int]:
    """Length of the block that repeats from here on, and how often; (1, 1) if none does."""
    best, saved = (1, 1), 0
    for period in range(1, min(LONGEST_PERIOD, (len(signs) - start) // 2) + 1):
        times = 1
        block = signs[start : start + period]
        while signs[start + times * period : start + (times + 1) * period] == block:
            times += 1
        if (times - 1) * period > saved:
            best, saved = (period, times), (times - 1) * period
    return best


def _row(modules: Sequence[_Module], level: int, prefix: str = "") -> TreeRow:
    leaves = [layer for module in modules for layer in module.leaves()]
    first, last = (module.label.rstrip("./") for module in (modules[0], modules[-1]))
    label = first if len(modules) == 1 else f"{first} … {_differing(first, last)}"
    return TreeRow(
        depth=level,
        label=f"{prefix}: {label}" if prefix else label,
        layers=len(leaves),
        layer=modules[0].layer if not prefix else None,
        parameters=_parameters(leaves),
        multiply_accumulates=sum(layer.multiply_accumulates or 0 for layer in leaves),
        integers=sum(layer.integer for layer in leaves),
    )


def _parameters(layers: Sequence[TreeLayer]) -> int:
    named = {name: size for layer in layers for name, size in layer.constants.items()}
    return sum(named.values()) + sum(layer.parameters for layer in layers if not layer.constants)


def _differing(first: str, last: str) -> str:
    """Part of the last name that differs from the first: the number."""
    if _NUMBERS.sub("#", first) != _NUMBERS.sub("#", last):
        return last
    pairs = zip(_NUMBERS.findall(first), _NUMBERS.findall(last), strict=True)
    changed = [after for before, after in pairs if before != after]
    return changed[0] if len(changed) == 1 else last
