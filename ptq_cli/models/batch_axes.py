"""On which axis the inputs and outputs of a model have their samples, where it is not the first.

The axes are noted in the model's metadata, so that every command that reads the model knows them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import BatchAxisError, FixedInputError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.core.tensors import Array, TensorSpec, format_shape
from ptq_cli.core.words import entry_option
from ptq_cli.models.graph_reading import value_spec

# What ptq has noted of a model's inputs in its metadata, when it prepared the model.


def noted_table(model: ir.Model, key: str) -> dict[str, Any]:
    """Return the table that a model's metadata have under a key, as JSON.

    Edge case:
        Metadata that hold no such table, because ptq did not write them, are an empty one.

    Example:
        >>> model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
        >>> model.metadata_props["a"], model.metadata_props["b"] = '{"x": 1}', "3"
        >>> noted_table(model, "a"), noted_table(model, "b"), noted_table(model, "c")
        ({'x': 1}, {}, {})
    """
    try:
        found = json.loads(model.metadata_props.get(key, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


BATCH_AXES = "ptq.batch_axis"
"""Key of a model's metadata: axes by name, as JSON; null for an input that has no samples."""
ALL, NONE = "*", "none"
Axes = Mapping[str, int | None]
Wanted = Mapping[str, int | str]
"""Axes as a recipe has them: ``none`` for no axis, ``*`` for all inputs that are not named."""


def input_axes(wanted: Wanted, names: Sequence[str]) -> dict[str, int | None]:
    """Return the axis of the samples of each input."""
    asked = {name: wanted.get(name, wanted.get(ALL, 0)) for name in names}
    return {name: axis if isinstance(axis, int) else None for name, axis in asked.items()}


def noted_axes(model: ir.Model) -> dict[str, int | None]:
    """Return the axes that a model's metadata have, by the names of its inputs and outputs.

    Metadata that ptq did not write say nothing.
    """
    axes = noted_table(model, BATCH_AXES)
    return {name: axis for name, axis in axes.items() if axis is None or (type(axis) is int and axis >= 0)}


def with_axes(specs: Sequence[TensorSpec], axes: Axes) -> tuple[TensorSpec, ...]:
    """Return specs with the axes of their samples; one that is not named has them on the first."""
    return tuple(
        replace(spec, batch_axis=axes.get(spec.name, 0) if _has(spec, axes.get(spec.name, 0)) else 0)
        for spec in specs
    )


def told_axes(model: ir.Model, wanted: Wanted) -> dict[str, int | str]:
    """Return the axes of the samples that a model tells of inputs that are not in ``wanted``, by name.

    Its metadata tell them, or else the names of its sizes: each input has the same name on the axis of its
    samples, which is not the first of an input with a fixed size there, and on no other axis of that input. A
    first axis of 1 may be a batch of one sample, so that there the name has to say that it is a batch.
    """
    inputs = {value.name or "": value for value in _fed(model)}
    if BATCH_AXES in model.metadata_props:
        noted = {name: NONE if axis is None else axis for name, axis in noted_axes(model).items()}
        return {name: noted[name] for name in inputs if name in noted and not {name, ALL} & wanted.keys()}
    axes = {name: axis for name, axis in input_axes(wanted, list(inputs)).items() if axis is not None}
    sizes = {name: _size(inputs[name], axis) for name, axis in axes.items() if inputs[name].shape}
    symbols = {size for size in sizes.values() if size is not None}
    others = [name for name, size in sizes.items() if size is None]
    if ALL in wanted or len(symbols) != 1 or any(name in wanted for name in others):
        return {}
    (samples,) = symbols
    found: dict[str, int | str] = {}
    for name in others:
        axis = _other_axis(inputs[name], samples)
        if axis is None:
            return {}
        found[name] = axis
    return found


def _other_axis(value: ir.Value, samples: str) -> int | None:
    """Return the only axis whose size has that name; None if there are several, or the first is a batch."""
    sizes = list(value.shape or ())
    places = [axis for axis in range(len(sizes)) if _size(value, axis) == samples]
    is_batch = sizes[0] == 1 and "batch" not in samples.lower()
    return places[0] if len(places) == 1 and isinstance(sizes[0], int) and not is_batch else None


def axis_notes(told: Wanted) -> tuple[str, ...]:
    """Return what to tell of axes that nobody named."""
    words = (
        f"'{name}' has no axis for samples" if axis == NONE else f"the samples of '{name}' are on axis {axis}"
        for name, axis in told.items()
    )
    return tuple(f"{item}, as the model's file says; --set data.batch_axis names another" for item in words)


def note_axes(model: ir.Model, wanted: Wanted, what: str, outputs: Axes | None = None) -> None:
    """Note in a model's metadata on which axes its samples are; ``wanted`` counts more than ``outputs``."""
    if not wanted:
        return
    require_axes(model, wanted, what)
    inputs = [value.name or "" for value in _fed(model)]
    axes = {name: axis for name, axis in input_axes(wanted, inputs).items() if axis != 0}
    named = {
        value.name or "": wanted[value.name or ""] for value in model.graph.outputs if value.name in wanted
    }
    axes |= {name: axis for name, axis in (outputs or {}).items() if axis != 0}
    axes |= {name: axis if isinstance(axis, int) else None for name, axis in named.items()}
    model.metadata_props[BATCH_AXES] = json.dumps(axes)


def note_told_axes(model: ir.Model, wanted: Wanted, what: str) -> tuple[str, ...]:
    """Note the axes of samples that are wanted or that names of sizes tell; return what to say of those."""
    told = {} if BATCH_AXES in model.metadata_props else told_axes(model, wanted)
    note_axes(model, {**told, **wanted}, what)
    return axis_notes(told)


def require_axes(model: ir.Model, wanted: Wanted, what: str) -> None:
    """Check that axes are of inputs and outputs of a model."""
    values = {value.name or "": value for value in (*model.graph.inputs, *model.graph.outputs)}
    for name, axis in wanted.items():
        if name == ALL:
            continue
        if name not in values:
            raise BatchAxisError(
                f"--set data.batch_axis names '{name}', which is neither an input nor an output of '{what}'"
                f"{did_you_mean(name, list(values))}",
                hint=f"its inputs and outputs: {', '.join(values)}",
            )
        shape = values[name].shape
        if isinstance(axis, int) and shape is not None and axis >= len(shape):
            raise BatchAxisError(
                f"{entry_option('data.batch_axis', name, axis)}: '{name}' of '{what}' has {len(shape)} axes",
                hint="axes count from 0",
            )


def found_axes(model: ir.Model, wanted: Wanted) -> dict[str, int | None]:
    """Return the axes of the samples of outputs that symbolic sizes show, by name.

    Where no input has samples, no output has any.
    """
    inputs = _fed(model)
    axes = input_axes(wanted, [value.name or "" for value in inputs])
    if axes and set(axes.values()) == {None}:
        return {value.name or "": None for value in model.graph.outputs}
    symbols = {_size(value, axes[value.name or ""]) for value in inputs} - {None}
    found: dict[str, int | None] = {}
    for value in model.graph.outputs:
        places = [axis for axis in range(len(value.shape or ())) if _size(value, axis) in symbols]
        if len(places) == 1:
            found[value.name or ""] = places[0]
    return found


def measured_axes(one: Mapping[str, Array], two: Mapping[str, Array]) -> dict[str, int | None]:
    """Return the axes of outputs that are twice as long for two samples as for one, by name.

    Example:
        >>> import numpy as np
        >>> measured_axes({"y": np.zeros((2, 1))}, {"y": np.zeros((2, 2))})
        {'y': 1}
    """
    found: dict[str, int | None] = {}
    for name, array in one.items():
        other = two[name]
        if array.ndim != other.ndim:
            continue
        places = [axis for axis in range(array.ndim) if other.shape[axis] == 2 * array.shape[axis]]
        if len(places) == 1:
            found[name] = places[0]
    return found


def _fed(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that need data: those without a constant."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def _has(spec: TensorSpec, axis: int | None) -> bool:
    return axis is None or axis < max(len(spec.shape), 1)


def _size(value: ir.Value, axis: int | None) -> str | None:
    if axis is None or value.shape is None or axis >= len(value.shape):
        return None
    size = value.shape[axis]
    return size.value if isinstance(size, ir.SymbolicDim) else None


# Inputs that are fixed to a constant before a model is prepared: ``[model.inputs]``.
#
# What depends on such an input alone is then folded, like a condition that chooses between two branches.


FIXED_INPUTS = "ptq.inputs"
"""Key of a model's metadata: the values of its fixed inputs by name, as JSON."""
FIRST_INITIALIZERS = 4
"""The version of the format from which on an initializer need not be an input as well."""
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
