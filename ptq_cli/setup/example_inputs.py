"""The inputs that a model is exported and compared with: the first samples of the data, or made up."""

from collections.abc import Mapping, Sequence

import numpy as np

from ptq_cli.calibdata.bind import (
    as_singles,
    axis_in_data,
    bind_inputs,
    match_names,
    positional_label,
    scalar_of,
)
from ptq_cli.calibdata.dataset.batches import cut, joined, part_of
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import DataShapeError, ModelInputError
from ptq_cli.core.tensors import Array, TensorSpec, format_shape, starts_empty
from ptq_cli.core.words import did_you_mean, entry_option
from ptq_cli.models.batch_axes import Axes, with_axes
from ptq_cli.models.fixed_inputs import SAMPLES
from ptq_cli.models.loading.source import ExampleInputs, ModelSource

Shapes = Mapping[str, Sequence[int]]
EXAMPLE_SAMPLES = 2  # An exporter takes a batch of one for a constant; two keep the axis dynamic


def example_inputs(source: ModelSource, shapes: Shapes, dataset: Dataset | None, axes: Axes) -> ExampleInputs:
    """A small batch for a model."""
    names = source.input_names
    # The batch of a quantized model with static shapes is not that of the example.
    shapes = {name: shape for name, shape in shapes.items() if name != SAMPLES or name in names}
    if shapes:
        _require_names(shapes, names)
    if dataset is not None:
        specs = with_axes(source.example_specs, axes)
        if specs:
            bind_inputs(dataset, specs)
        example = _first_samples(dataset, names, axes, specs)
        _require_same_shapes(example, shapes, dataset.source)
        return example
    if shapes:
        dtypes = {spec.name: spec.dtype for spec in source.example_specs}
        return {name: _made_up(tuple(shapes[name]), dtypes.get(name, np.dtype(np.float32))) for name in names}
    if source.example_specs or not names:
        return {spec.name: _made_up(_example_shape(spec), spec.dtype) for spec in source.example_specs}
    shape = entry_option("model.input_shape", names[0] if names else "x", "1,3,224,224")
    raise ModelInputError(
        f"the input shapes of '{source.file.path.name}' are not known ({', '.join(names)})",
        hint=f"pass data with --data, or give {shape}",
    )


def one_sample(example: ExampleInputs, axes: Axes) -> ExampleInputs:
    """The first sample of an example; a scalar is what it is."""
    return {
        name: part_of(array, axes.get(name, 0) if array.ndim else None, 0, 1)
        for name, array in example.items()
    }


def _require_names(shapes: Shapes, names: Sequence[str]) -> None:
    hint = f"the inputs are: {', '.join(names)}"
    for name in names:
        if name not in shapes:
            raise ModelInputError(f"--set model.input_shape does not name the input '{name}'", hint=hint)
    for name in shapes:
        if name not in names:
            raise ModelInputError(
                f"--set model.input_shape names '{name}', which is not an input"
                f"{did_you_mean(name, list(names))}",
                hint=hint,
            )


def _require_same_shapes(example: ExampleInputs, shapes: Shapes, source: str) -> None:
    for name, shape in shapes.items():
        found = example[name].shape
        if tuple(shape[1:]) != found[1:]:
            raise DataShapeError(
                f"input '{name}' is {format_shape((None, *found[1:]))} in '{source}', and --set "
                f"model.input_shape says {format_shape(tuple(shape))}",
                hint="leave --set model.input_shape out: the data determine the shape",
            )


def _first_samples(
    dataset: Dataset, names: Sequence[str], axes: Axes, specs: Sequence[TensorSpec]
) -> ExampleInputs:
    keys = match_names(dataset, names)
    dataset = dataset.fitted({keys[spec.name]: spec for spec in specs})
    label = positional_label(dataset, keys)
    narrowed = dataset.only([*keys.values(), *([label] if label is not None else [])])
    narrowed = as_singles(narrowed, specs, keys) or narrowed
    known = {spec.name: axis_in_data(narrowed, keys[spec.name], spec) for spec in specs} or axes
    narrowed = narrowed.along({keys[name]: known.get(name, 0) for name in names})
    batch = next(narrowed.batches(EXAMPLE_SAMPLES))
    scalars = {spec.name: spec for spec in specs if not spec.shape}
    if any(batch.inputs[keys[name]].ndim for name in scalars):
        batch = cut(batch, 0, 1)  # Another sample may have another value.
    example = {name: batch.inputs[key] for name, key in keys.items()}
    example = {
        name: scalar_of(array, scalars[name], f"'{dataset.source}'") if name in scalars else array
        for name, array in example.items()
    }
    if batch.size >= EXAMPLE_SAMPLES:
        return example
    return {
        name: joined([array] * EXAMPLE_SAMPLES, axes.get(name, 0) if array.ndim else None)
        for name, array in example.items()
    }


def _example_shape(spec: TensorSpec) -> tuple[int, ...]:
    """A small shape; a key-value cache is empty, so that masks cover the tokens alone."""
    is_empty = starts_empty(spec.name)
    return tuple(
        (0 if is_empty and axis and size is None else size or EXAMPLE_SAMPLES)
        for axis, size in enumerate(spec.shape)
    )


def _made_up(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    # Only to trace the model and to compare it with PyTorch; nothing is calibrated on it.
    if dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(shape).astype(dtype)
    return np.zeros(shape, dtype)
