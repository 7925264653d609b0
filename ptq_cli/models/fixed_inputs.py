"""Inputs fixed before a model is prepared: to a constant (``[model.inputs]``), or to a static shape."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import FixedInputError, ModelInputError
from ptq_cli.core.tensors import Array, TensorSpec, format_shape
from ptq_cli.core.words import did_you_mean, entry_option
from ptq_cli.models.batch_axes import noted_axes
from ptq_cli.models.graph_reading import every_value, noted_table, value_spec

FIXED_INPUTS = "ptq.inputs"  # metadata key: values of fixed inputs by name, as JSON
FIRST_INITIALIZERS = 4  # IR version from which on an initializer need not be an input
LONGEST_SHOWN = 40


def fixed_value(value: Any, spec: TensorSpec, what: str) -> Array:
    """Return a value as an array of an input's type and shape.

    A size of 1, or an axis that the value does not have, is repeated. A size that the model leaves open is
    that of the value, which must have the axis then.
    """
    given = entry_option("model.inputs", spec.name, shown_value(value))
    found = _cast(value, spec, given, what)
    sizes, shape = spec.shape, found.shape
    expected = (
        f"{given}: the input of '{what}' has shape {format_shape(sizes)}, the value {format_shape(shape)}"
    )
    if len(shape) > len(sizes):
        raise FixedInputError(expected, hint="give a value of the input's shape, or a single number")
    own = (None,) * (len(sizes) - len(shape)) + shape
    wanted = []
    for size, mine in zip(sizes, own, strict=True):
        if size is None and mine is None:
            raise FixedInputError(
                f"{expected}, and the model does not say how often it would be repeated",
                hint=f"give the whole value: nested lists of rank {len(sizes)}",
            )
        if None not in (size, mine) and mine not in (1, size):
            raise FixedInputError(expected, hint="give a value of the input's shape, or a single number")
        wanted.append(mine if size is None else size)
    return np.array(np.broadcast_to(found, wanted))


def _cast(value: Any, spec: TensorSpec, given: str, what: str) -> Array:
    found, dtype = np.asarray(value), spec.dtype
    number = dtype.kind in "iuf" and found.dtype.kind in "iuf"
    # ml_dtypes such as bfloat16 are of kind V.
    number = number or (dtype.kind == "V" and found.dtype.kind in "iuf")
    with np.errstate(over="ignore", invalid="ignore"):
        cast: Array = found.astype(dtype) if number or dtype.kind == found.dtype.kind == "b" else found
    fits = cast.dtype == dtype
    if fits and dtype.kind in "iu":
        fits = np.array_equal(cast.astype(object), found.astype(object))
    elif fits and dtype.kind == "f":
        fits = np.array_equal(np.isfinite(cast), np.isfinite(found))
    if not fits:
        raise FixedInputError(
            f"{given}: the input of '{what}' is {dtype}, which cannot hold {shown_value(value)}",
            hint="give true or false" if dtype.kind == "b" else "give a value of the input's type",
        )
    return cast


def fix_inputs(model: ir.Model, values: Mapping[str, Any], what: str) -> dict[str, Array]:
    """Make inputs of a graph constants, note that in its metadata, and return their arrays by name.

    An input that was fixed earlier, as the metadata say, may be given again with the same value.
    """
    inputs = {value.name or "": value for value in model.graph.inputs}
    earlier = fixed_earlier(model)
    found: dict[str, Array] = {}
    for name, value in values.items():
        if name not in inputs:
            _require_same(name, value, earlier, list(inputs), what)
            continue
        found[name] = array = fixed_value(value, value_spec(inputs[name]), what)
        inputs[name].const_value = ir.tensor(array, name=name)
        inputs[name].shape = ir.Shape(array.shape)
        model.graph.inputs.remove(inputs[name])
        model.graph.initializers[name] = inputs[name]
    if found:
        # Before this version, each initializer had to be an input as well.
        model.ir_version = max(model.ir_version, FIRST_INITIALIZERS)
        note_fixed(model, {name: values[name] for name in found})
    return found


def note_fixed(model: ir.Model, values: Mapping[str, Any]) -> None:
    """Note in a model's metadata what inputs were fixed to."""
    if values:
        model.metadata_props[FIXED_INPUTS] = json.dumps({**fixed_earlier(model), **values})


def fixed_earlier(model: ir.Model) -> dict[str, Any]:
    """Return the values that inputs of a model were fixed to when it was prepared, by name.

    Metadata that ptq did not write say nothing.
    """
    return noted_table(model, FIXED_INPUTS)


def unknown_input(name: str, known: Sequence[str], what: str) -> FixedInputError:
    """Return the error to raise where ``model.inputs`` names what is not an input."""
    return FixedInputError(
        f"--set model.inputs names '{name}', which is not an input of '{what}'"
        f"{did_you_mean(name, list(known))}",
        hint=f"its inputs: {', '.join(known) or 'none'}",
    )


def shown_value(value: Any) -> str:
    """Write a value as the option takes it, cut to some length."""
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _require_same(name: str, value: Any, earlier: Mapping[str, Any], known: list[str], what: str) -> None:
    if name not in earlier:
        raise unknown_input(name, known, what)
    if earlier[name] != value:
        raise FixedInputError(
            f"{entry_option('model.inputs', name, shown_value(value))}: in '{what}' this input was fixed to "
            f"{shown_value(earlier[name])} when it was prepared",
            hint="leave it out, or prepare the model again with the other value",
        )


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

    Raises: ModelInputError: the shapes leave one open.

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
