"""What is calibrated: the float model, its data, and what the target would quantize of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ptq_cli.calibdata.bind import bind_inputs, fit_dataset, fixed_batch_size
from ptq_cli.calibdata.carries import zero_states
from ptq_cli.calibdata.dataset.dataset import Dataset, DividedDataset, Division
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.core.errors import EmptyDataError, RuntimeFailedError
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.core.words import few
from ptq_cli.models.batch_axes import axis_notes
from ptq_cli.models.fixed_inputs import closed_sizes
from ptq_cli.models.graph_reading import nested_values, value_spec
from ptq_cli.models.loading.source import ModelKind
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.read.stored_constants import require_float_weights
from ptq_cli.recipe.recovery_rungs import needs_ranges
from ptq_cli.recipe.sections import CalibrationSettings
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.memory_plan import tapped_sizes
from ptq_cli.setup.float_model import FloatModel, axes_told, make_float_model, open_source, reading
from ptq_cli.setup.resolve import Resolved, no_data, open_data
from ptq_cli.setup.served_inputs import (
    carried_settings,
    carry_notes,
    fitting_data,
    with_state_axes,
    with_states,
)

NESTED_BYTES, MOST_SAMPLES = 1 << 30, 1 << 31  # of what is computed inside loops for a batch; and no limit


@dataclass(frozen=True, kw_only=True)
class CalibrationSubject:
    """What is calibrated.

    Attributes:
        data: what its inputs look like; None if no activation has to be measured, and none were given.
        plan: what the target would quantize of it; its tensors are measured.
        is_measured: false where no part of the recipe reads a statistic, as for weights alone: then the data
            are counted, and not run.
        told_axes: of the samples, which the model's file told; see ``as_given``.
    """

    model: FloatModel
    data: Dataset | None
    plan: Plan
    batch_size: int
    is_measured: bool = True
    notes: tuple[str, ...] = ()
    told_axes: Mapping[str, int | str] = field(default_factory=dict)

    def as_given(self, resolved: Resolved) -> Resolved:
        """Return request and recipe with the axes and carries found in the model.

        Later commands then need not be told them either, and a calibration is that of the same settings.
        """
        data, settings, carry = resolved.recipe.data, dict[str, Any](), carried_settings(self.data)
        if self.told_axes:
            asked = resolved.request.settings.get("batch_axis", {})
            settings["batch_axis"] = {**self.told_axes, **asked}
            data = replace(data, batch_axis={**self.told_axes, **data.batch_axis})
        if carry:
            settings["carry"], data = carry, replace(data, carry=carry)
        return resolved.with_recipe(replace(resolved.recipe, data=data)).with_settings(**settings)

    @property
    def measured(self) -> tuple[str, ...]:
        """The tensors whose statistics are collected."""
        return self.plan.measured if self.is_measured else ()

    @property
    def dataset(self) -> Dataset:
        """The data."""
        if self.data is None:
            raise no_data("calibration", "--data")
        return self.data


def open_subject(
    resolved: Resolved,
    progress: ProgressCallback,
    output: Path | None = None,
    evaluation: Dataset | None = None,
) -> CalibrationSubject:
    """Open the model and the calibration set, turn the model into ONNX, and plan it for the target.

    The names of the evaluation set are checked before PyTorch exports. A recipe that names no data, and asks
    for no activation that would have to be measured, needs none.
    """
    recipe, threads = resolved.recipe, resolved.machine.threads
    if recipe.model.path is not None:  # or else the next line says so
        progress(Progress(f"reading {Path(recipe.model.path).name}", 0, None))
    source = open_source(recipe.model)
    dataset = None
    if recipe.calibration.data is not None or needs_ranges(recipe):
        others = () if evaluation is None else (evaluation,)
        dataset = open_data(recipe.calibration, resolved.strict_reading(*others), "calibration", "--data")
    source = reading(source, dataset, recipe.model)
    told = with_state_axes(dataset, recipe.data, source, axes_told(source, recipe.data.batch_axis))
    axes = {**told, **recipe.data.batch_axis}
    if dataset is not None:
        dataset = fitting_data(dataset, recipe.data, source, axes)
        for note in carry_notes(dataset, recipe.data):
            progress(Progress(f"reading {source.file.path.name}", 0, None, note))
    if evaluation is not None:
        fitting_data(evaluation, recipe.data, source, axes)
    if source.file.kind is ModelKind.ONNX:
        require_float_weights(source.to_onnx({}))
    else:
        progress(Progress(f"turning the {source.file.kind.value} into ONNX", 0, None))
    for note in axis_notes(told):
        progress(Progress(f"reading {source.file.path.name}", 0, None, note))
    model = make_float_model(
        source,
        dataset,
        threads=threads,
        shapes=recipe.model.input_shape,
        axes=axes,
        allow_nan=recipe.calibration.allow_nonfinite,
        output=output,
    )
    fixed = fixed_batch_size(model.inputs)
    if resolved.target.static_shapes:
        example = partial(_example_shapes, dataset, model.inputs)
        closed_sizes(model.model, recipe.model.input_shape, resolved.target.name, example)
    if model.parity is None:
        # The part that is tapped may run where the whole does not; better to learn it now than after it ran.
        Session(model.stored, threads=threads)
    batch_size = fixed or recipe.data.batch_size
    plan = make_plan(model.model, resolved.target)
    if dataset is not None:
        dataset = with_states(dataset, recipe.data, model.model, model.stored)
        dataset = calibrated_part(dataset, recipe.calibration, model.inputs)
        if not fixed and needs_ranges(recipe):
            batch_size = min(batch_size, _most_with_loops(model, plan, bind_inputs(dataset, model.inputs)))
    return CalibrationSubject(
        model=model,
        data=dataset,
        plan=plan,
        batch_size=batch_size,
        is_measured=needs_ranges(recipe),
        notes=tuple(_notes(dataset, model, batch_size)) if dataset is not None else (),
        told_axes=told,
    )


def _most_with_loops(model: FloatModel, plan: Plan, dataset: Dataset) -> int:
    """The most samples of a batch by what If, Loop and Scan compute of one: batches with these are run whole.

    A loop gives what all its steps compute: of 7 MB of weights a decoder of 501 steps makes 1.2 GB a sample.
    """
    inside = nested_values(model.model.graph)
    nested = [name for name in plan.measured if name in inside]
    if not nested:
        return MOST_SAMPLES
    with closing(dataset.batches(1)) as batches:
        first = next(batches, None)
    if first is None:
        return MOST_SAMPLES
    try:
        sizes, _ = tapped_sizes(model.model, nested, first.inputs)
    except RuntimeFailedError:  # One sample alone is nothing for this model.
        return MOST_SAMPLES
    return max(1, NESTED_BYTES // max(1, sum(sizes.values())))


def _notes(dataset: Dataset, model: FloatModel, batch_size: int) -> Iterator[str]:
    bound = bind_inputs(dataset, model.inputs)
    yield from bound.notes
    states = () if isinstance(dataset, Recordings) else _zero_states(bound, model, batch_size)
    if states:
        yield (
            f"states are always zero in these data ({few(states, 3)}), and a model that runs on has others: "
            "save recordings [recordings, steps, …] without them"
        )


def _zero_states(dataset: Dataset, model: FloatModel, batch_size: int) -> tuple[str, ...]:
    return zero_states(
        dataset, model.inputs, [value_spec(value) for value in model.model.graph.outputs], batch_size
    )


def _example_shapes(dataset: Dataset | None, inputs: Sequence[TensorSpec]) -> dict[str, tuple[int, ...]]:
    if dataset is None:
        return {}
    with closing(bind_inputs(dataset, inputs).batches(fixed_batch_size(inputs) or 1)) as batches:
        return {name: array.shape for batch in islice(batches, 1) for name, array in batch.inputs.items()}


def calibrated_part(dataset: Dataset, settings: CalibrationSettings, inputs: Sequence[TensorSpec]) -> Dataset:
    """The samples that are calibrated on: all but those that are set aside."""
    dataset, _ = fit_dataset(dataset, inputs)
    if not settings.set_aside:
        return dataset
    division = Division(settings.set_aside, fixed_batch_size(inputs) or 1)
    if isinstance(dataset, Recordings):
        return dataset.divided(division)
    part = DividedDataset(dataset, division)
    if part.count == 0 or part.other.count == 0:
        raise EmptyDataError(
            f"'{dataset.source}' has {dataset.count} samples, too few to hold out a fraction of "
            f"{settings.set_aside:g}",
            hint="pass more data with --data or --samples",
        )
    return part
