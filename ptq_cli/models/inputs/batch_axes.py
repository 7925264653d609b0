"""On which axis the inputs and outputs of a model have their samples, where it is not the first.

The axes are noted in the model's metadata, so that every command that reads the model knows them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from ptq_cli.core.errors import BatchAxisError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.inputs.model_notes import noted_table

BATCH_AXES = "ptq.batch_axis"
"""Key of a model's metadata: axes by name, as JSON; null for an input that has no samples."""
ALL, NONE = "*", "none"
Axes = Mapping[str, int | None]
Wanted = Mapping[str, int | str]
"""Axes as a recipe has them: ``none`` for no axis, ``*`` for all inputs that are not named."""


def input_axes(wanted: Wanted, names: Sequence[str]) -> dict[str, int | None]:
    """Return the axis of the samples of each input.

    Example:
        >>> input_axes({"state": 1, "table": "none"}, ["x", "state", "table"])
        {'x': 0, 'state': 1, 'table': None}
        >>> input_axes({"*": "none"}, ["x"])
        {'x': None}
    """
    asked = {name: wanted.get(name, wanted.get(ALL, 0)) for name in names}
    return {name: axis if isinstance(axis, int) else None for name, axis in asked.items()}


def noted_axes(model: ir.Model) -> dict[str, int | None]:
    """Return the axes that a model's metadata have, by the names of its inputs and outputs.

    Edge case:
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


def note_axes(model: ir.Model, wanted: Wanted, what: str, outputs: Axes | None = None) -> None:
    """Note in a model's metadata on which axes its samples are.

    Args:
        model: is changed in place.
        wanted: as the recipe has them.
        what: the model's file, for messages.
        outputs: axes that were found of outputs; ``wanted`` counts more.

    Raises:
        BatchAxisError: a name is neither an input nor an output, or has no such axis.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["": 20]>
        ...     g (float[2, n] x) => (float[2, n] y) { y = Neg(x) }'''
        >>> model = ir.from_onnx_text(text)
        >>> note_axes(model, {"x": 1}, "m.onnx", found_axes(model, {"x": 1}))
        >>> model.metadata_props
        {'ptq.batch_axis': '{"x": 1, "y": 1}'}
    """
    if not wanted:
        return
    require_axes(model, wanted, what)
    inputs = [value.name or "" for value in model.graph.inputs if value.name not in model.graph.initializers]
    axes = {name: axis for name, axis in input_axes(wanted, inputs).items() if axis != 0}
    named = {
        value.name or "": wanted[value.name or ""] for value in model.graph.outputs if value.name in wanted
    }
    axes |= {name: axis for name, axis in (outputs or {}).items() if axis != 0}
    axes |= {name: axis if isinstance(axis, int) else None for name, axis in named.items()}
    model.metadata_props[BATCH_AXES] = json.dumps(axes)


def require_axes(model: ir.Model, wanted: Wanted, what: str) -> None:
    """Check that axes are of inputs and outputs of a model.

    Raises:
        BatchAxisError: a name is neither an input nor an output, or has no such axis.
    """
    values = {value.name or "": value for value in (*model.graph.inputs, *model.graph.outputs)}
    for name, axis in wanted.items():
        if name == ALL:
            continue
        if name not in values:
            raise BatchAxisError(
                f"--batch-axis names '{name}', which is neither an input nor an output of '{what}'"
                f"{did_you_mean(name, list(values))}",
                hint=f"its inputs and outputs: {', '.join(values)}",
            )
        shape = values[name].shape
        if isinstance(axis, int) and shape is not None and axis >= len(shape):
            raise BatchAxisError(
                f"--batch-axis {name}={axis}: '{name}' of '{what}' has {len(shape)} axes",
                hint="axes count from 0",
            )


def found_axes(model: ir.Model, wanted: Wanted) -> dict[str, int | None]:
    """Return the axes of the samples of outputs that symbolic sizes show, by name.

    Edge case:
        Where no input has samples, no output has any.
    """
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
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


def _has(spec: TensorSpec, axis: int | None) -> bool:
    return axis is None or axis < max(len(spec.shape), 1)


def _size(value: ir.Value, axis: int | None) -> str | None:
    if axis is None or value.shape is None or axis >= len(value.shape):
        return None
    size = value.shape[axis]
    return size.value if isinstance(size, ir.SymbolicDim) else None
