"""On which axis the inputs and outputs of a model have their samples, where it is not the first.

The axes are noted in the model's metadata, so that every command that reads the model knows them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from ptq_cli.core.errors import BatchAxisError
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.core.words import did_you_mean, entry_option
from ptq_cli.models.graph_reading import noted_table

BATCH_AXES = "ptq.batch_axis"  # metadata key: axes by name as JSON, null for no samples
_ALL, _NONE = "*", "none"
Axes = Mapping[str, int | None]
Wanted = Mapping[str, int | str]  # as in a recipe: `none` for no axis, `*` for all other inputs


def input_axes(wanted: Wanted, names: Sequence[str]) -> dict[str, int | None]:
    """Return the axis of the samples of each input."""
    asked = {name: wanted.get(name, wanted.get(_ALL, 0)) for name in names}
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
        replace(spec, batch_axis=axis if axis is None or axis < max(len(spec.shape), 1) else 0)
        for spec, axis in ((spec, axes.get(spec.name, 0)) for spec in specs)
    )


def told_axes(model: ir.Model, wanted: Wanted) -> dict[str, int | str]:
    """Return the axes of the samples that a model tells of inputs that are not in ``wanted``, by name.

    Its metadata tell them, or else the names of its sizes: each input has the same name on the axis of its
    samples, which is not the first of an input with a fixed size there, and on no other axis of that input. A
    first axis of 1 may be a batch of one sample, so that there the name has to say that it is a batch.
    """
    inputs = {value.name or "": value for value in _fed(model)}
    if BATCH_AXES in model.metadata_props:
        noted = {name: _NONE if axis is None else axis for name, axis in noted_axes(model).items()}
        return {name: noted[name] for name in inputs if name in noted and not {name, _ALL} & wanted.keys()}
    axes = {name: axis for name, axis in input_axes(wanted, list(inputs)).items() if axis is not None}
    sizes = {name: _size(inputs[name], axis) for name, axis in axes.items() if inputs[name].shape}
    symbols = {size for size in sizes.values() if size is not None}
    others = [name for name, size in sizes.items() if size is None]
    if _ALL in wanted or len(symbols) != 1 or any(name in wanted for name in others):
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
    """Notes on axes that nobody named."""
    words = (
        f"'{name}' has no axis for samples"
        if axis == _NONE
        else f"the samples of '{name}' are on axis {axis}"
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
        if name == _ALL:
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


def _size(value: ir.Value, axis: int | None) -> str | None:
    if axis is None or value.shape is None or axis >= len(value.shape):
        return None
    size = value.shape[axis]
    return size.value if isinstance(size, ir.SymbolicDim) else None
