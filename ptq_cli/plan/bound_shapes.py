"""Shapes of all values of a graph for inputs of given or assumed sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.core.errors import DataShapeError, ModelInputError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.core.tensors import format_shape, is_cache, starts_empty
from ptq_cli.models.graph_reading import every_value
from ptq_cli.models.index_tables import longest_sequence
from ptq_cli.models.shapes import all_known, infer_shapes

ASSUMED_BATCH = 1


ASSUMED_PIXELS = 224
"""Assumed height and width of an image whose size the model leaves open: ImageNet's."""


ASSUMED_LENGTH = 128
"""Assumed size of any other axis, such as the length of a sequence."""


PLUS = "+"
"""Between the symbols of a size that is a sum, such as the length of a mask for a cache and new tokens."""


Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class BoundShapes:
    """Shapes of values of known rank by name, None for a size that is not known before the model runs.

    Sizes that were not given are ``assumed``, by ``input[axis]``.
    """

    shapes: Mapping[str, Shape]
    assumed: Mapping[str, int]


def bind_shapes(model: ir.Model, sizes: Mapping[str, Sequence[int]] | None = None) -> BoundShapes:
    """Return the shape of each value of a copy of a model, for inputs of these sizes.

    Sizes that are not given are assumed and listed: 1 for the first axis, 0 for the length of a key-value
    cache that starts empty, 224 for the last two axes of a float input with four axes, 128 for any other, or
    the rows of a shorter table of positions. A symbol has the same size in every input, and ``past + new`` is
    the sum of two.
    """
    given = _given(model, sizes or {})
    fed = all(value.shape is not None and value.shape.is_static() for value in model.graph.inputs)
    if fed and all_known(model.graph):
        return _bound(model.graph, {})
    bound = model.clone()
    assumed: dict[str, int] = {}
    symbols: dict[str, int] = {}
    constants = bound.graph.initializers
    inputs = [
        value for value in bound.graph.inputs if value.name not in constants and value.shape is not None
    ]
    for value in inputs:
        for size, number in zip(value.shape or (), given.get(value.name or "", ()), strict=False):
            if isinstance(size, ir.SymbolicDim) and size.value:
                symbols.setdefault(size.value, number)
    length = min(ASSUMED_LENGTH, longest_sequence(model.graph) or ASSUMED_LENGTH)
    for value in sorted(inputs, key=_order):
        value.shape = ir.Shape(_numbers(value, given.get(value.name or ""), symbols, assumed, length))
    fixed = set(inputs)
    for value in every_value(bound.graph):
        if value not in fixed:
            _forget(value, symbols)
    infer_shapes(bound, strict=False)
    return _bound(bound.graph, assumed)


def _bound(graph: ir.Graph, assumed: Mapping[str, int]) -> BoundShapes:
    values = [*every_value(graph), *graph.initializers.values()]
    return BoundShapes(
        {value.name or "": _shape(value) for value in values if value.shape is not None}, assumed
    )


def _given(model: ir.Model, sizes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    given = {}
    names = [value.name or "" for value in model.graph.inputs if value.name not in model.graph.initializers]
    for name in sizes:
        if name not in names:
            raise ModelInputError(
                f"a shape is given for '{name}', which is not an input{did_you_mean(name, names)}",
                hint=f"the inputs are: {', '.join(names)}",
            )
    for value in model.graph.inputs:
        name = value.name or ""
        if name not in sizes:
            continue
        shape, wanted = tuple(sizes[name]), _shape(value) if value.shape is not None else None
        fits = wanted is None or (
            len(wanted) == len(shape)
            and all(size in (None, number) for size, number in zip(wanted, shape, strict=True))
        )
        if not fits and wanted is not None:
            raise DataShapeError(
                f"input '{name}' has shape {format_shape(wanted)}, but {format_shape(shape)} was given",
                hint="give the shape in the model's layout",
            )
        given[name] = shape
    return given


def _numbers(
    value: ir.Value,
    given: tuple[int, ...] | None,
    symbols: dict[str, int],
    assumed: dict[str, int],
    length: int,
) -> list[int]:
    if given is not None:
        return list(given)
    numbers = []
    sizes = list(value.shape or ())
    for axis, size in enumerate(sizes):
        if isinstance(size, int):
            numbers.append(size)
            continue
        symbol = size.value or f"{value.name}[{axis}]"
        if symbol not in symbols and (total := _sum(symbol, symbols)) is not None:
            symbols[symbol] = total
        elif symbol not in symbols:
            symbols[symbol] = _assumed_size(value, axis, len(sizes), length)
            assumed[f"{value.name}[{axis}]"] = symbols[symbol]
        numbers.append(symbols[symbol])
    return numbers


def _order(value: ir.Value) -> int:
    """Sort inputs so that a symbol of a cache's length is one that no other input has, and sums come last."""
    if any(isinstance(size, ir.SymbolicDim) and PLUS in (size.value or "") for size in value.shape or ()):
        return 2
    return int(is_cache(value.name or ""))


def _sum(symbol: str, symbols: Mapping[str, int]) -> int | None:
    """Return the size of a sum such as ``past + 1``; None if it is not one, or a part is not known."""
    parts = [part.strip() for part in symbol.split(PLUS)]
    sizes = [int(part) if part.isdecimal() else symbols.get(part) for part in parts]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(parts) > 1 and len(known) == len(parts) else None


def _assumed_size(value: ir.Value, axis: int, rank: int, length: int) -> int:
    if axis == 0:
        return ASSUMED_BATCH
    if starts_empty(value.name or ""):
        return 0
    if is_cache(value.name or ""):
        return length
    is_image = rank == 4 and axis >= 2 and value.dtype is not None and value.dtype.is_floating_point()
    return ASSUMED_PIXELS if is_image else length


def _forget(value: ir.Value, symbols: Mapping[str, int]) -> None:
    """Replace known symbols by numbers, and leave the sizes that depend on others to inference."""
    if value.shape is None:
        return
    sizes = [
        symbols.get(size.value or "", None) if isinstance(size, ir.SymbolicDim) else size
        for size in value.shape
    ]
    value.shape = ir.Shape(sizes)


def _shape(value: ir.Value) -> Shape:
    return tuple(size if isinstance(size, int) else None for size in value.shape or ())
