"""The model's file becomes the float ONNX model that every stage works on."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs, fixed_batch_size, match_names
from ptq_cli.calibdata.dataset import Dataset
from ptq_cli.core.errors import DataShapeError, ModelInputError, UsageError, did_you_mean
from ptq_cli.core.tensors import Array, TensorSpec, format_shape
from ptq_cli.models.onnx_source import input_specs
from ptq_cli.models.open import open_model
from ptq_cli.models.parity import require_parity
from ptq_cli.models.prepare import prepare
from ptq_cli.models.source import Example, ModelFile, ModelSource
from ptq_cli.recipe.schema import Recipe
from ptq_cli.runtime.session import Session

EXAMPLE_SAMPLES = 2
"""An exporter takes a batch of one for a constant; two keep the axis dynamic."""


@dataclass(frozen=True)
class FloatModel:
    """A prepared float model.

    Attributes:
        file: where it came from.
        model: the graph.
        content: the graph, serialized.
        inputs: specs of its inputs.
        parity: largest relative difference to PyTorch on the example, or None where ONNX is the source.
    """

    file: ModelFile
    model: ir.Model
    content: bytes
    inputs: tuple[TensorSpec, ...]
    parity: float | None


def open_source(recipe: Recipe) -> ModelSource:
    """Open the recipe's model.

    Raises:
        UsageError: the recipe names none.
        PtqError: it cannot be opened; see ``ptq_cli.models.open``.
    """
    if recipe.model.path is None:
        raise UsageError(
            "no model was named",
            hint="name its file after the command, or write path = 'model.pt' under [model] in ptq.toml",
        )
    return open_model(Path(recipe.model.path), recipe.model)


def make_float_model(source: ModelSource, recipe: Recipe, dataset: Dataset | None) -> FloatModel:
    """Export, prepare and compare with PyTorch.

    Args:
        source: the opened model.
        recipe: for shapes of inputs where there is no data.
        dataset: its first samples are the example, if there is one.

    Raises:
        ModelInputError: neither data nor settings nor the model's file tell what its inputs look like.
        DataNameError: the data have no array for an input.
        ExportError: PyTorch cannot export it.
        InvalidOnnxError: the result fails the checker.
        ParityError: it does not compute what PyTorch computes.
    """
    what = source.file.path.name
    example, expected = _run_source(source, _example(source, recipe, dataset))
    model = prepare(source.to_onnx(example), what)
    content: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    inputs = input_specs(model)
    parity = None
    if expected is not None:
        if fixed_batch_size(inputs) == 1:  # The exporter could not keep the batch axis dynamic.
            example = {name: array[:1] for name, array in example.items()}
            expected = source.run(example) or expected
        session = Session(content, threads=recipe.runtime.threads)
        found = session.run(example)
        allow_nan = recipe.calibration.allow_nonfinite
        parity = require_parity(expected, found, session.outputs, what, allow_nan=allow_nan)
    return FloatModel(source.file, model, content, inputs, parity)


def _run_source(source: ModelSource, example: Example) -> tuple[Example, list[Array] | None]:
    """Return the example that the model takes, and what it computes: it may allow batches of one alone."""
    try:
        return example, source.run(example)
    except ModelInputError:
        single = {name: array[:1] for name, array in example.items()}
        with contextlib.suppress(ModelInputError):
            return single, source.run(single)
        raise


def _example(source: ModelSource, recipe: Recipe, dataset: Dataset | None) -> Example:
    names = source.input_names
    shapes = recipe.model.input_shape
    if shapes:
        _require_names(shapes, names)
    if dataset is not None:
        if source.example_specs:
            bind_inputs(dataset, source.example_specs)
        example = _first_samples(dataset, names)
        _require_same_shapes(example, shapes, dataset.source)
        return example
    if shapes:
        dtypes = {spec.name: spec.dtype for spec in source.example_specs}
        return {name: _made_up(tuple(shapes[name]), dtypes.get(name, np.dtype(np.float32))) for name in names}
    if source.example_specs:
        return {
            spec.name: _made_up(tuple(size or EXAMPLE_SAMPLES for size in spec.shape), spec.dtype)
            for spec in source.example_specs
        }
    raise ModelInputError(
        f"what the inputs of '{source.file.path.name}' look like is not known ({', '.join(names)})",
        hint=f"name data with --data, or give --input-shape {names[0] if names else 'x'}=1,3,224,224",
    )


def _require_names(shapes: Mapping[str, list[int]], names: Sequence[str]) -> None:
    hint = f"the inputs are: {', '.join(names)}"
    for name in names:
        if name not in shapes:
            raise ModelInputError(f"--input-shape does not name the input '{name}'", hint=hint)
    for name in shapes:
        if name not in names:
            raise ModelInputError(
                f"--input-shape names '{name}', which is no input{did_you_mean(name, list(names))}", hint=hint
            )


def _require_same_shapes(example: Example, shapes: Mapping[str, list[int]], source: str) -> None:
    for name, shape in shapes.items():
        found = example[name].shape
        if tuple(shape[1:]) != found[1:]:
            raise DataShapeError(
                f"input '{name}' is {format_shape((None, *found[1:]))} in '{source}', and --input-shape says "
                f"{format_shape(tuple(shape))}",
                hint="leave --input-shape out: data tell the shape",
            )


def _first_samples(dataset: Dataset, names: Sequence[str]) -> Example:
    keys = match_names(dataset, names)
    batch = next(dataset.only(keys.values()).batches(EXAMPLE_SAMPLES))
    example = {name: batch.inputs[key] for name, key in keys.items()}
    if batch.size >= EXAMPLE_SAMPLES:
        return example
    return {name: np.concatenate([array] * EXAMPLE_SAMPLES) for name, array in example.items()}


def _made_up(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    # Only to trace the model and to compare it with PyTorch; nothing is calibrated on it.
    if dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(shape).astype(dtype)
    return np.zeros(shape, dtype)
