"""Inputs for speed and kernels that need no labels, and data that become recordings with their states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs, fixed_batch_size, match_names
from ptq_cli.calibdata.carries import Carry, Cuts, carries_of, named_carries, require_start, state_axes
from ptq_cli.calibdata.dataset.batches import Batch as Samples
from ptq_cli.calibdata.dataset.batches import joined, part_of
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.recordings import Recordings, Step
from ptq_cli.core.errors import (
    CarryError,
    DataShapeError,
    ModelInputError,
    PtqError,
    RecipeValueError,
    UntrustedCodeError,
)
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.core.words import entry_option, few
from ptq_cli.models.batch_axes import Wanted, input_axes, told_axes, with_axes
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.graph_reading import value_spec
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.models.loading.source import ModelKind, ModelSource
from ptq_cli.plan.multiply_accumulates import bind_shapes
from ptq_cli.recipe.sections import DataSettings
from ptq_cli.runtime.session import Session
from ptq_cli.setup.resolve import Resolved


def fitting_data(dataset: Dataset, data: DataSettings, source: ModelSource, axes: Wanted) -> Dataset:
    """Data that have an array for each input of a model, as recordings if outputs are carried.

    ``axes`` are those of the samples that are not on the first.
    """
    if source.file.kind is ModelKind.ONNX:
        dataset = as_recordings(dataset, data, source.to_onnx({}), axes)
    elif named_carries(data.carry):
        raise CarryError(
            f"--set data.carry needs an ONNX model, and '{source.file.path.name}' is a "
            f"{source.file.kind.value}",
            hint="ptq export --float makes an ONNX model of it first",
        )
    match_names(dataset, source.input_names)
    return dataset


def with_state_axes(
    dataset: Dataset | None, data: DataSettings, source: ModelSource, told: Mapping[str, int | str]
) -> dict[str, int | str]:
    """The axes of samples that a model's file tells, with those that its states show."""
    if dataset is None or source.file.kind is not ModelKind.ONNX:
        return dict(told)
    model = source.to_onnx({})
    inputs = input_specs(model)
    carries = carried_pairs(dataset, data, model, inputs)
    return {**told, **state_axes(carries, inputs, {**told, **data.batch_axis})}


def as_recordings(
    dataset: Dataset, data: DataSettings, model: ir.Model, axes: Wanted | None = None
) -> Dataset:
    """Data as recordings if outputs of the model are carried, or as they are.

    ``axes`` are those of the samples where the model's metadata do not have them yet.
    """
    inputs = input_specs(model)
    if axes is not None:
        inputs = with_axes(inputs, input_axes(axes, [spec.name for spec in inputs]))
    carries = carried_pairs(dataset, data, model, inputs)
    if not carries or isinstance(dataset, Recordings):
        return dataset
    for item in carries:
        require_start(item, dataset.specs)
    return Recordings(dataset, inputs, carries, Cuts(data.steps, *data.frame))


def carried_pairs(
    dataset: Dataset, data: DataSettings, model: ir.Model, inputs: Sequence[TensorSpec]
) -> tuple[Carry, ...]:
    """Which outputs of a model are its next inputs, as the recipe or their names say."""
    outputs = [value_spec(value) for value in model.graph.outputs]
    return carries_of(
        data.carry, inputs, outputs, lambda name: name in dataset.specs or dataset.can_make(name)
    )


def with_states(
    dataset: Dataset, data: DataSettings, model: ir.Model, stored: StoredModel | None = None
) -> Dataset:
    """Data whose steps have the states that the float model gives, if it carries any.

    ``stored`` is the model as its files hold it.
    """
    axes = None if stored is not None else {**told_axes(model, data.batch_axis), **data.batch_axis}
    found = as_recordings(dataset, data, model, axes or None)
    if not isinstance(found, Recordings):
        return found
    return found.carried(partial(_opened, stored if stored is not None else serialize(model)))


def carried_settings(dataset: Dataset | None) -> dict[str, str]:
    """Carried outputs as a recipe has them, so that a run remembers what names showed."""
    if not isinstance(dataset, Recordings):
        return {}
    return {item.output: item.state.name for item in dataset.carries}


def carry_notes(dataset: Dataset | None, data: DataSettings) -> tuple[str, ...]:
    """Notes on outputs that are carried although nobody named them."""
    if not isinstance(dataset, Recordings) or data.carry:
        return ()
    pairs = [f"'{item.output}' as '{item.state.name}'" for item in dataset.carries]
    return (
        f"each step reads {few(pairs, 3)} of the step before; --set data.carry.OUTPUT=INPUT names others, "
        "--set 'data.carry.*=none' feeds nothing back",
    )


def _opened(model: StoredModel) -> Step:
    # One thread: what several add up may differ in its last bits, and states would carry that on.
    session = Session(model, threads=1)

    def step(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return dict(zip(session.outputs, session.run(inputs), strict=True))

    return step


_SEED = 0
MADE_UP = "made-up inputs"
LARGEST_INDEX = 2  # Integers are 0 or 1: a table of words has at least two rows


def own_batch_size(inputs: Sequence[TensorSpec]) -> int | None:
    """How many samples a run of a model takes, where its inputs say so; None if any may be.

    1 where the inputs fix different ones: their first axes do not count samples, and a run is one.

    Example:
        >>> x, table = TensorSpec("x", np.dtype("f4"), (4, 3)), TensorSpec("table", np.dtype("f4"), (9, 3))
        >>> own_batch_size([x]), own_batch_size([x, table])
        (4, 1)
    """
    try:
        return fixed_batch_size(inputs)
    except DataShapeError:
        return 1


def made_up_batches(
    model: ir.Model, batch: int, count: int = 1, shapes: Mapping[str, Sequence[int]] | None = None
) -> list[dict[str, Array]]:
    """Seeded batches: Gaussian floats, and 0 or 1 for integers and booleans.

    Sizes that the model leaves open are ``batch`` for the axis of the samples, or as ``bind_shapes`` assumes
    them.

    A model that fixes another batch keeps its own; the first axis of ``shapes`` counts.
    """
    bound, given = bind_shapes(model, shapes).shapes, shapes or {}
    for spec in input_specs(model):
        if spec.name not in bound:
            raise ModelInputError(
                f"the rank of input '{spec.name}' is not known",
                hint=f"pass {entry_option('model.input_shape', spec.name, '1,3,224,224')}",
            )
    random = np.random.default_rng(_SEED)
    batches: list[dict[str, Array]] = []
    for _ in range(count):
        arrays: dict[str, Array] = {}
        for spec in input_specs(model):
            sizes = [size or 0 for size in bound[spec.name]]
            axis = spec.samples_axis
            if spec.name not in given and axis is not None and spec.shape[axis] is None:
                sizes[axis] = batch
            is_float = spec.dtype.kind == "f"
            values = random.standard_normal(sizes) if is_float else random.integers(0, LARGEST_INDEX, sizes)
            arrays[spec.name] = np.asarray(values).astype(spec.dtype)
        batches.append(arrays)
    return batches


BATCHES = 16  # different ones, so that no cache holds them all; more would take memory for nothing


@dataclass(frozen=True)
class ServedInputs:
    """What a model is run on.

    Attributes:
        data: whose samples they are, or that they are made up.
        faults: why data of the recipe were not used.
    """

    data: str
    batches: Sequence[Mapping[str, Array]]
    faults: tuple[str, ...] = ()


def served_batch(specs: Sequence[TensorSpec], asked: int) -> int:
    """How many samples a run of a model takes where it is served.

    Example:
        >>> import numpy as np
        >>> served_batch([TensorSpec("x", np.dtype("f4"), (4, 3))], 1)
        4
    """
    own = own_batch_size(specs)
    if own is not None and asked not in (1, own):
        raise RecipeValueError(
            f"'export.serve_batch' is {asked}, but the model takes batches of {own}",
            hint="leave 'export.serve_batch' out, or export the model with a dynamic batch axis",
        )
    return own or asked


def inputs_of_recipe(
    resolved: Resolved, graph: ir.Model, specs: Sequence[TensorSpec], batch: int
) -> ServedInputs:
    """Samples of the recipe's calibration or evaluation data, or made-up ones."""
    recipe = resolved.recipe
    faults: list[str] = []
    for data in dict.fromkeys(filter(None, (recipe.calibration.data, recipe.evaluation.data))):
        try:
            return ServedInputs(
                data, batches_of(data, resolved, graph, specs, batch, repeat=True), tuple(faults)
            )
        except UntrustedCodeError:
            raise
        except PtqError as error:
            faults.append(error.message)
    shapes = {name: (batch, *shape[1:]) for name, shape in recipe.model.input_shape.items() if shape}
    return ServedInputs(MADE_UP, made_up_batches(graph, batch, shapes=shapes), tuple(faults))


def batches_of(
    data: str,
    resolved: Resolved,
    graph: ir.Model,
    specs: Sequence[TensorSpec],
    batch: int,
    *,
    repeat: bool = False,
) -> list[Mapping[str, Array]]:
    """Whole batches of samples; with ``repeat``, fewer samples than a batch has are repeated."""
    reading = resolved.reading if repeat else resolved.strict_reading()
    dataset = with_states(reading.open(data, batch * BATCHES), resolved.recipe.data, graph)
    found = list(islice(bind_inputs(dataset, specs).batches(batch), BATCHES))
    whole: list[Mapping[str, Array]] = [item.inputs for item in found if item.size == batch]
    if not whole and repeat and found:
        return [_repeated(found[0], batch)]
    if not whole:
        samples = sum(item.size for item in found)
        raise RecipeValueError(
            f"--batch is {batch}, and '{dataset.source}' has {samples} samples", hint=f"--batch {samples}"
        )
    return whole


def _repeated(few: Samples, batch: int) -> Mapping[str, Array]:
    times = -(-batch // few.size)
    axes = {name: few.axes.get(name, 0) for name in few.inputs}
    return {
        name: part_of(joined([array] * times, axes[name]), axes[name], 0, batch)
        for name, array in few.inputs.items()
    }
