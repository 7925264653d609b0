"""Close the open dimensions of a model's inputs, for a compiler that takes static shapes alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ptq_cli.core.errors import ModelInputError
from ptq_cli.core.words import entry_option
from ptq_cli.models.batch_axes import noted_axes
from ptq_cli.models.graph_reading import every_value

SAMPLES = "batch"  # what ``model.input_shape`` calls the axis of the samples


def closed_sizes(
    model: ir.Model,
    shapes: Mapping[str, Sequence[int]],
    target: str,
    example: Callable[[], Mapping[str, Sequence[int]]] = dict,
) -> dict[str, int]:
    """Return the size of each open dimension of a model's inputs, by its name, or its place without one.

    Args:
        model: whose inputs have names for what is open.
        shapes: of inputs, by name; ``"batch"`` is the size of all axes of samples.
        target: for messages.
        example: gives the shapes of one sample, for the hint.

    Raises:
        ModelInputError: the shapes leave one open.

    Example:
        >>> text = '<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) { y = Exp(x) }'
        >>> model = ir.from_onnx_text(text)
        >>> closed_sizes(model, {"batch": [1]}, "qnn"), closed_sizes(model, {"x": [4]}, "qnn")
        ({'n': 1}, {'n': 4})
    """
    found: dict[str, int] = {}
    axes, names = noted_axes(model), [value.name or "" for value in model.graph.inputs]
    batch = shapes.get(SAMPLES) if SAMPLES not in names else None
    for value in sorted(model.graph.inputs, key=lambda item: item.name not in shapes):
        name, sizes = value.name or "", list(value.shape or ())
        given, samples = shapes.get(name), axes.get(name, 0)
        for axis, size in enumerate(sizes):
            key = _key(value, axis) if not isinstance(size, int) else ""
            if not key or (given is None and key in found):
                continue
            if given is not None and len(given) == len(sizes):
                found.setdefault(key, given[axis])
            elif batch is not None and axis == samples:
                found.setdefault(key, batch[0])
            else:
                is_alone = sum(not isinstance(item, int) for item in sizes) == 1
                words = [(SAMPLES, "1")] if is_alone and axis == samples else _wanted(model, found, example())
                raise ModelInputError(
                    f"target '{target}' takes static shapes, and axis {axis} of input '{name}' is open",
                    hint=f"pass {' '.join(entry_option('model.input_shape', *word) for word in words)}",
                )
    return found


def _wanted(
    model: ir.Model, closed: Iterable[str], example: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, str]]:
    """Yield the shapes that close all that is open, each of an input that closes more than those before."""
    known = set(closed)
    for value in model.graph.inputs:
        name, sizes = value.name or "", list(value.shape or ())
        keys = {_key(value, axis) for axis, size in enumerate(sizes) if not isinstance(size, int)}
        if keys - known:
            seen = example.get(name, [size if isinstance(size, int) else 1 for size in sizes])
            yield name, ",".join(map(str, seen))
        known |= keys


def _key(value: ir.Value, axis: int) -> str:
    """Name of an open dimension, or its place."""
    assert value.shape is not None  # noqa: S101 - it has a dimension
    size = value.shape[axis]
    return (None if isinstance(size, int) else size.value) or f"{value.name}[{axis}]"


def close_dimensions(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Give open dimensions their sizes, wherever their names stand.

    Args:
        model: is changed in place.
        sizes: as ``closed_sizes`` returns them.
    """
    for value in every_value(model.graph):
        if value.shape is not None and not value.shape.is_static():
            value.shape = ir.Shape(
                size if isinstance(size, int) else sizes.get(_key(value, axis), size)
                for axis, size in enumerate(value.shape)
            )


def reopened(model: ir.Model, like: ir.Model) -> ir.Model:
    """Return a model with the open dimensions that another's inputs of the same names have."""
    shapes = {value.name: value.shape for value in like.graph.inputs}
    if all(value.shape == shapes.get(value.name, value.shape) for value in model.graph.inputs):
        return model
    for value in every_value(model.graph):
        if value.producer() is not None:
            value.shape = None
    for value in model.graph.inputs:
        value.shape = shapes.get(value.name, value.shape)
    return model
