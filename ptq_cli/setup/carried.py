"""Data become recordings, and get the states that a float model has at each of their steps."""

from collections.abc import Mapping, Sequence
from functools import partial

import onnx_ir as ir

from ptq_cli.calibdata.bind import match_names
from ptq_cli.calibdata.carries import Carry, Cuts, carries_of, named_carries, require_start, state_axes
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.recordings import Recordings, Step
from ptq_cli.core.errors import CarryError
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.core.words import few
from ptq_cli.models.batch_axes import Wanted, input_axes, told_axes, with_axes
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.graph_reading import value_spec
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.models.loading.source import ModelKind, ModelSource
from ptq_cli.recipe.sections import DataSettings
from ptq_cli.runtime.session import Session


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
