"""Shapes of all values of a graph for inputs of given or assumed sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.core.errors import DataShapeError, ModelInputError
from ptq_cli.core.tensors import format_shape, is_cache, starts_empty
from ptq_cli.core.words import did_you_mean
from ptq_cli.models.graph_reading import every_value
from ptq_cli.models.index_tables import longest_sequence
from ptq_cli.models.shapes import all_known, infer_shapes

ASSUMED_BATCH = 1  # samples
ASSUMED_PIXELS = 224  # height and width of an image: ImageNet's
ASSUMED_LENGTH = 128  # size of any other axis, such as the length of a sequence
PLUS = "+"  # between the symbols of a sum, such as the length of a mask for a cache and new tokens

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
    inputs = {value.name or "": value for value in model.graph.inputs}
    names = [name for name in inputs if name not in model.graph.initializers]
    for name in sizes:
        if name not in names:
            raise ModelInputError(
                f"a shape is given for '{name}', which is not an input{did_you_mean(name, names)}",
                hint=f"the inputs are: {', '.join(names)}",
            )
    given = {name: tuple(sizes[name]) for name in inputs if name in sizes}
    for name, shape in given.items():
        wanted = _shape(inputs[name]) if inputs[name].shape is not None else None
        if wanted is None:
            continue
        same_rank = len(wanted) == len(shape)
        if not same_rank or any(size not in (None, shape[axis]) for axis, size in enumerate(wanted)):
            raise DataShapeError(
                f"input '{name}' has shape {format_shape(wanted)}, but {format_shape(shape)} was given",
                hint="give the shape in the model's layout",
            )
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
        own = f"{value.name}[{axis}]"
        symbol = own if isinstance(size, int) else size.value or own
        if not isinstance(size, int) and symbol not in symbols:
            if (total := _sum(symbol, symbols)) is None:
                total = assumed[own] = _assumed_size(value, axis, len(sizes), length)
            symbols[symbol] = total
        numbers.append(size if isinstance(size, int) else symbols[symbol])
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
    if value.shape is not None:
        value.shape = ir.Shape(
            size if isinstance(size, int) else symbols.get(size.value or "") for size in value.shape
        )


def _shape(value: ir.Value) -> Shape:
    return tuple(size if isinstance(size, int) else None for size in value.shape or ())
