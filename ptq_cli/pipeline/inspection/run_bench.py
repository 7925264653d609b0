"""``bench``: how long models take, one beside the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ptq_cli.core.errors import (
    ModelFormatError,
    ModelInputError,
    RecipeValueError,
    RuntimeFailedError,
)
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import TensorSpec, format_shape
from ptq_cli.models.batch_axes import note_axes
from ptq_cli.models.fixed_inputs import fix_inputs, fixed_earlier, unknown_input
from ptq_cli.models.loading.detect import ModelKind, detect_kind
from ptq_cli.models.loading.onnx_source import input_specs, load_onnx
from ptq_cli.models.stored import StoredModel, serialize
from ptq_cli.pipeline.preparing.made_up_inputs import MADE_UP, made_up_batches, own_batch_size
from ptq_cli.pipeline.preparing.served_inputs import ServedInputs, batches_of, inputs_of_recipe
from ptq_cli.pipeline.run.resolve import Request, Resolved, resolve
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.recipe_layers import file_layer
from ptq_cli.report.evaluation.latency import LatencyComparison, measure_latency


@dataclass(frozen=True)
class BenchOptions:
    """What ``bench`` is asked for besides a recipe's settings.

    Attributes:
        batch: samples a run; None for one, or as many as the models fix.
        seconds: how long to measure, about.
        runs: how many runs of each model to count, instead of ``seconds``.
    """

    batch: int | None = None
    seconds: float = 10.0
    runs: int | None = None


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """The result of ``bench``.

    Attributes:
        models: the files, in the order in which ``latency`` has them.
        latency: percentiles and ratios.
        inputs: what a run was given: name, dtype and shape.
        data: whose samples, or that they were made up.
        data_faults: why data of the recipe were not used; empty if the first were.
    """

    models: tuple[Path, ...]
    latency: LatencyComparison
    inputs: tuple[TensorSpec, ...]
    data: str
    data_faults: tuple[str, ...] = ()


def run_bench(
    request: Request,
    run: RunDirectory,
    models: Sequence[Path] = (),
    options: BenchOptions = BenchOptions(),
    progress: ProgressCallback = silent,
) -> BenchResult:
    """Let models take turns at the same inputs, and return how long they take; nothing is written.

    Args:
        request: data, inputs that are fixed, shapes of inputs and threads. Without data and shapes, the data
            of the recipe are used, which is that of the run for models in a run directory; inputs are made up
            if there are none.
        run: whose float and quantized model are taken where none is named.
        models: ONNX files; ratios are to the first.
        options: batch and length.
        progress: is called after each turn.

    Raises:
        ModelInputError: the models have different inputs.
        MissingStageError: no model was given, and the run has none.
        PtqError: a model or the data cannot be used.
    """
    paths = tuple(models) or (
        run.require_stage(run.float_model, "ptq calibrate"),
        run.require_stage(run.quantized_model, "ptq export"),
    )
    beside = next((file for path in paths if (file := RunDirectory(path.parent).recipe).is_file()), None)
    resolved = resolve(request, otherwise=file_layer(beside) if beside is not None else None)
    for path in paths:
        progress(Progress(f"reading {path.name}", 0, None))
    graphs = [_load(path) for path in paths]
    timed = _with_fixed(graphs, paths, resolved.recipe.model.inputs)
    for graph, path in zip(graphs, paths, strict=True):
        note_axes(graph, resolved.recipe.data.batch_axis, path.name)
    specs = _common_inputs(paths, [input_specs(graph) for graph in graphs])
    _fix_sizes(graphs[0], specs)
    batch = _batch_size(options.batch, own_batch_size(specs))
    found = _inputs(request, resolved, graphs[0], specs, batch, options.batch)
    inputs = tuple(TensorSpec(name, array.dtype, array.shape) for name, array in found.batches[0].items())
    try:
        latency = measure_latency(
            timed,
            found.batches,
            threads=resolved.machine.threads,
            seconds=options.seconds,
            runs=options.runs,
            samples=batch,
            progress=progress,
        )
    except RuntimeFailedError as error:
        if found.data != MADE_UP:
            raise
        made_up = ", ".join(map(str, inputs))
        hint = f"the inputs were made up: {made_up}; pass --data, or other sizes with --input-shape"
        raise RuntimeFailedError(error.message, hint=hint) from error
    return BenchResult(
        models=paths, latency=latency, inputs=inputs, data=found.data, data_faults=found.faults
    )


def _with_fixed(
    graphs: Sequence[ir.Model], paths: Sequence[Path], values: Mapping[str, Any]
) -> list[Path | StoredModel]:
    """Fix inputs of the graphs that have them, and return what is timed: files, or graphs that were changed.

    Raises:
        FixedInputError: none of the models has or had such an input, or the value does not fit.
    """
    timed: list[Path | StoredModel] = []
    inputs = [[value.name or "" for value in graph.graph.inputs] for graph in graphs]
    for name in values:
        if not any(
            name in names or name in fixed_earlier(graph) for names, graph in zip(inputs, graphs, strict=True)
        ):
            raise unknown_input(name, inputs[0], paths[0].name)
    for graph, path, names in zip(graphs, paths, inputs, strict=True):
        known = {*names, *fixed_earlier(graph)}
        own = fix_inputs(graph, {name: value for name, value in values.items() if name in known}, path.name)
        timed.append(serialize(graph) if own else path)
    return timed


def _inputs(
    request: Request,
    resolved: Resolved,
    graph: ir.Model,
    specs: tuple[TensorSpec, ...],
    batch: int,
    asked_batch: int | None,
) -> ServedInputs:
    """Return samples of the data that were asked for, else of those in the recipe, else made-up ones.

    Raises:
        PtqError: the data that were asked for cannot be used.
    """
    recipe = resolved.recipe
    if "data" in request.settings and recipe.calibration.data is not None:
        data = recipe.calibration.data
        return ServedInputs(data, batches_of(data, resolved.reading, specs, batch))
    if "input_shape" in request.settings:
        _require_one_batch(asked_batch, recipe.model.input_shape)
        return ServedInputs(MADE_UP, made_up_batches(graph, batch, shapes=recipe.model.input_shape))
    return inputs_of_recipe(resolved, graph, specs, batch)


def _load(path: Path) -> ir.Model:
    kind = detect_kind(path)
    if kind is not ModelKind.ONNX:
        raise ModelFormatError(
            f"model '{path.name}' is a {kind.value}, expected ONNX",
            hint="ptq prepare converts every kind of model to ONNX",
        )
    return load_onnx(path)


def _common_inputs(paths: Sequence[Path], specs: Sequence[tuple[TensorSpec, ...]]) -> tuple[TensorSpec, ...]:
    """Return the inputs that all models take: a size that one of them fixes is fixed."""
    common = {spec.name: spec for spec in specs[0]}
    for path, others in zip(paths[1:], specs[1:], strict=True):
        for name in sorted({*common, *(spec.name for spec in others)}):
            one, other = common.get(name), next((spec for spec in others if spec.name == name), None)
            if one is None or other is None or one.dtype != other.dtype or not _alike(one.shape, other.shape):
                theirs = f"'{path.name}' has {_described(other, name)}"
                raise ModelInputError(
                    f"'{paths[0].name}' has {_described(one, name)}, {theirs}",
                    hint="compare a model with its own quantized model",
                )
            sizes = zip(one.shape, other.shape, strict=True)
            common[name] = replace(one, shape=tuple(two if first is None else first for first, two in sizes))
    return tuple(common.values())


def _alike(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    return len(one) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True)
    )


def _fix_sizes(graph: ir.Model, specs: Sequence[TensorSpec]) -> None:
    """Write the sizes that any of the models fixes into the graph that inputs are made up for."""
    shapes = {spec.name: spec.shape for spec in specs}
    for value in graph.graph.inputs:
        if value.name in shapes and value.shape is not None:
            sizes = zip(value.shape, shapes[value.name], strict=True)
            value.shape = ir.Shape([size if fixed is None else fixed for size, fixed in sizes])


def _described(spec: TensorSpec | None, name: str) -> str:
    return (
        f"no input '{name}'" if spec is None else f"input {spec.name}: {spec.dtype}{format_shape(spec.shape)}"
    )


def _batch_size(asked: int | None, fixed: int | None) -> int:
    if asked is not None and asked < 1:
        raise RecipeValueError(f"--batch must be at least 1, got {asked}", hint="the usual size is 1")
    if None not in (asked, fixed) and asked != fixed:
        raise RecipeValueError(
            f"--batch is {asked}, but the model takes batches of {fixed}",
            hint="leave --batch out, or export the model with a dynamic batch axis",
        )
    return asked or fixed or 1


def _require_one_batch(asked: int | None, shapes: Mapping[str, Sequence[int]]) -> None:
    for name, shape in shapes.items():
        if asked is not None and shape and shape[0] != asked:
            raise RecipeValueError(
                f"--batch is {asked}, but --input-shape says {shape[0]} samples for '{name}'",
                hint="leave one of them out",
            )
