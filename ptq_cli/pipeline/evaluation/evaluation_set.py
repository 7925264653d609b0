"""What models are evaluated on and by which metrics; axes of the samples; how many run at once."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace

import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs, fixed_batch_size, is_step
from ptq_cli.calibdata.carries import Carry
from ptq_cli.calibdata.dataset.batches import Batch, checked
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.labels import is_class_index, require_labels
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.core.errors import CarryError, GateError, MetricError, RuntimeFailedError
from ptq_cli.core.tensors import Array, TensorSpec, is_cache
from ptq_cli.core.words import did_you_mean
from ptq_cli.evaluation.decide_gates import read_baseline
from ptq_cli.evaluation.document.measurement import GENERATED
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.generation import Continuation, continuation_of
from ptq_cli.evaluation.limits import bounds_of, check_limits
from ptq_cli.evaluation.metrics.metric_registry import PAIR_METRICS
from ptq_cli.evaluation.metrics.spec import MetricSpec, metric_specs, split_output
from ptq_cli.evaluation.runs.judged import Judged, judged_metrics
from ptq_cli.evaluation.runs.model_outputs import NO_AXIS, Axis, axes_for_one_sample, axes_that_grow
from ptq_cli.evaluation.runs.run_models import Run
from ptq_cli.models.batch_axes import noted_axes
from ptq_cli.models.fixed_inputs import SAMPLES
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.staged_model import StagedModel
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import GateSettings
from ptq_cli.runtime.tapping.pieces import Cutter, PieceSize


def leads_with_samples(model: ir.Model) -> bool:
    """Tell whether the first axis of each output has the symbolic size that the first one of an input has."""
    inputs, outputs = model.graph.inputs, model.graph.outputs
    batch = {_first_size(value) for value in inputs} - {None}
    return all(_first_size(value) in batch for value in outputs)


def noted_output_axes(model: ir.Model) -> tuple[Axis, ...] | None:
    """The axis of the samples of each output that the metadata have; None if they have none."""
    axes = noted_axes(model)
    if not axes:
        return None
    found = [axes.get(value.name or "", 0) for value in model.graph.outputs]
    return tuple(NO_AXIS if axis is None else axis for axis in found)


def output_axes(dataset: Dataset, fixed: int | None, outputs: int, run: Run) -> tuple[Axis, ...]:
    """The axis of each output that the samples are on; None where it is not known."""
    unknown: tuple[Axis, ...] = (None,) * outputs
    try:
        one = _batch_of(dataset, 1) if fixed in (None, 1) else None
        if one is None or fixed == 1:
            return axes_for_one_sample(run(one.inputs)) if one is not None else unknown
        two = _batch_of(dataset, 2)
        return axes_that_grow(run(one.inputs), run(two.inputs)) if two is not None else unknown
    except RuntimeFailedError:  # It does not take so few: the metrics say what they cannot do.
        return unknown


def _first_size(value: ir.Value) -> str | None:
    size = value.shape[0] if value.shape is not None and len(value.shape) else None
    return size.value if isinstance(size, ir.SymbolicDim) else None


def _batch_of(dataset: Dataset, size: int) -> Batch | None:
    with closing(dataset.batches(size)) as batches:
        batch = next(batches, None)
    return batch if batch is not None and batch.size == size else None


MOST_BYTES = 1 << 28  # of the scores of tokens of one batch and model: several models' are in memory at once


def fitting_batch(dataset: Dataset, model: ir.Model, wanted: int) -> int:
    """The samples of a batch: those wanted, or as many as have 256 MiB of scores, at least 1.

    The data's inputs of two axes say how long a sequence is, the model's outputs [samples, positions, tokens]
    how many scores a position has. Other outputs are not looked at.
    """
    lengths = [spec.shape[1] for spec in dataset.specs.values() if len(spec.shape) == 2]
    longest = max((length for length in lengths if length is not None), default=0)
    sizes = [_bytes(value, longest) for value in model.graph.outputs]
    largest = max(sizes, default=0)
    return max(1, min(wanted, MOST_BYTES // largest)) if largest else wanted


def _bytes(value: ir.Value, longest: int) -> int:
    """Bytes of an output for each sample; 0 if not known."""
    if value.shape is None or len(value.shape) != 3 or value.dtype is None:
        return 0
    sizes = [size if isinstance(size, int) else longest for size in list(value.shape)[1:]]
    return math.prod(sizes) * math.ceil(value.dtype.itemsize)


_TABLE = 2  # Axes of class scores: samples and classes

# What is measured where no metric is named and the labels are classes.
_BY_DEFAULT = (MetricSpec(name="top1", metric="top1"),)


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What is measured, and from which report regressions are."""

    batch_size: int
    outputs: tuple[str, ...]
    varying: frozenset[str]
    metrics: tuple[Judged, ...]
    baseline: Report | None
    is_step: bool
    carries: tuple[Carry, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationSet(_Measured):
    """The evaluation set, found to fit the model, the metrics asked for, and the baseline.

    Attributes:
        dataset: with the arrays that are the model's inputs.
        batch_size: samples a batch: the model's own, which is ``fixed_batch``, or the recipe's.
        leads_with_samples: the model says that the first axis of each output is that of the samples.
        noted_axes: the axis of the samples of each output, if the model's metadata have axes.
        is_step: whether each sample is a step, because no input has an axis for samples or states are
            carried.
        carries: outputs that are the next step's inputs.
        continuation: how prompts are continued, if that is asked for.
    """

    dataset: Dataset
    fixed_batch: int | None
    leads_with_samples: bool
    noted_axes: tuple[Axis, ...] | None
    notes: tuple[str, ...] = ()
    continuation: Continuation | None = None


@dataclass(frozen=True, kw_only=True)
class SetSummary(_Measured):
    """What is measured on which data: all that a report needs of an evaluation set."""

    source: str
    data_digest: str
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, chosen: EvaluationSet) -> "SetSummary":
        """Summary of an evaluation set."""
        dataset = chosen.dataset
        same = {item.name: getattr(chosen, item.name) for item in fields(_Measured)}
        names = tuple(dataset.class_names)
        return cls(source=dataset.source, data_digest=dataset.digest(), class_names=names, **same)


def fit_evaluation(dataset: Dataset, recipe: Recipe, model: ir.Model) -> EvaluationSet:
    """Check that the evaluation set fits the model's inputs, and the metrics its outputs."""
    inputs = input_specs(model)
    carries = dataset.carries if isinstance(dataset, Recordings) else ()
    bound = bind_inputs(dataset, inputs)
    fixed_batch = fixed_batch_size(inputs)
    own_batch = fixed_batch or _closed_batch(recipe, inputs)
    batch_size = own_batch or fitting_batch(bound, model, recipe.data.batch_size)
    specs = _limited_specs(recipe)
    if not specs and has_classes(bound, batch_size):
        specs = _BY_DEFAULT
    if labeled := [spec.name for spec in specs if spec.needs_labels]:
        require_labels(bound, f"metric '{labeled[0]}'")
    if recipe.gate.max_drift and not carries:
        raise GateError(
            "'gate.max_drift' limits how errors grow from step to step, and no output is carried",
            hint="name what is fed back: --set data.carry.OUTPUT=INPUT",
        )
    metrics, steps = _fitting_metrics(recipe.gate, model, specs), is_step(inputs)
    if not steps:
        _require_tables(metrics, model)
    return EvaluationSet(
        dataset=bound,
        batch_size=batch_size,
        fixed_batch=fixed_batch,
        leads_with_samples=leads_with_samples(model),
        outputs=output_names(model),
        varying=varying_outputs(model),
        noted_axes=noted_output_axes(model),
        metrics=metrics,
        baseline=read_baseline(recipe.gate),
        is_step=steps or bool(carries),
        carries=carries,
        notes=bound.notes,
        continuation=_continuation(bound, recipe, inputs, model, carries),
    )


def _continuation(
    dataset: Dataset, recipe: Recipe, inputs: Sequence[TensorSpec], model: ir.Model, carries: Sequence[Carry]
) -> Continuation | None:
    tokens = recipe.evaluation.generate
    if tokens is not None:
        held = [spec.name for spec in inputs if is_cache(spec.name) and not dataset.can_make(spec.name)]
        if held and not carries:
            raise CarryError(
                f"--generate hands caches on from token to token, and '{held[0]}' is read from the data",
                hint="name what is fed back: --set data.carry.OUTPUT=INPUT, not --set 'data.carry.*=none'",
            )
        return continuation_of(tokens, inputs, _ranks(model), carries)
    if GENERATED in recipe.gate.metrics:
        hint = "--generate 32 of ptq evaluate continues them by 32 tokens"
        raise GateError(f"there is a limit on '{GENERATED}', and no prompt is continued", hint=hint)
    return None


def _closed_batch(recipe: Recipe, inputs: Sequence[TensorSpec]) -> int | None:
    """The batch of a quantized model with static shapes, which the float model leaves open."""
    shapes = recipe.model.input_shape
    if not shapes or not load_target(recipe.quantization.target).static_shapes:
        return None
    axes = {spec.name: spec.samples_axis for spec in inputs}
    told = [shapes[name][axis] for name, axis in axes.items() if axis is not None and name in shapes]
    return next(iter((*told, *shapes.get(SAMPLES, ()))), None)


def noted_evaluation(recipe: Recipe, model: ir.Model, noted: SetSummary, *, with_labels: bool) -> SetSummary:
    """Summary of data that is not at hand, by the recipe's metrics and baseline."""
    specs = _limited_specs(recipe) or (_BY_DEFAULT if with_labels else ())
    outputs, metrics = output_names(model), _fitting_metrics(recipe.gate, model, specs)
    baseline, varying = read_baseline(recipe.gate), varying_outputs(model)
    return replace(noted, outputs=outputs, varying=varying, metrics=metrics, baseline=baseline)


def output_names(model: ir.Model) -> tuple[str, ...]:
    """The names of a model's outputs."""
    return tuple(value.name or "" for value in model.graph.outputs)


def varying_outputs(model: ir.Model) -> frozenset[str]:
    """The outputs with an axis whose size no input has: it may depend on the data, as of boxes."""
    inputs = {str(size) for value in model.graph.inputs for size in value.shape or ()}
    return frozenset(
        value.name or ""
        for value in model.graph.outputs
        if value.shape is None
        or any(
            not isinstance(size, int) and (size.value is None or str(size) not in inputs)
            for size in value.shape
        )
    )


def _fitting_metrics(gate: GateSettings, model: ir.Model, specs: Sequence[MetricSpec]) -> tuple[Judged, ...]:
    outputs = output_names(model)
    _require_measured(gate, [spec.name for spec in specs], outputs)
    return judged_metrics(specs, outputs, class_counts(model))


def _limited_specs(recipe: Recipe) -> tuple[MetricSpec, ...]:
    """The metrics that are named, and those that have limits that make sense."""
    named = metric_specs(recipe.evaluation.metrics, recipe.metric)
    check_limits(recipe.gate, {spec.name: bounds_of(spec.metric) for spec in named})
    return metric_specs(recipe.evaluation.metrics, recipe.metric, recipe.gate.metrics)


def has_classes(dataset: Dataset, batch_size: int) -> bool:
    """Say whether labels are classes, so that top-1 is meant where no metric is named."""
    if not dataset.has_labels:
        return False
    first = next(dataset.batches(batch_size), None)
    return first is None or first.labels is None or is_class_index(first.labels)


def _require_measured(gate: GateSettings, names: Iterable[str], outputs: Sequence[str]) -> None:
    """Refuse a limit on what will not be measured: better to learn it now than after the work."""
    first, *others = outputs
    further = [f"{name}[{output}]" for output in others for name in PAIR_METRICS]
    known = [*names, *PAIR_METRICS, GENERATED, *further]
    for name in gate.metrics:
        if name not in known:
            metric, output = split_output(name)
            of_first = metric in PAIR_METRICS and output == first
            raise GateError(
                f"there is a limit on '{name}', which is not measured{did_you_mean(name, known)}",
                hint=f"write {metric}: for the first output it has the plain name"
                if of_first
                else f"the measured metrics are {', '.join(known)}; add others with --metric",
            )


def _require_tables(metrics: Sequence[Judged], model: ir.Model) -> None:
    """Refuse a metric of class scores on an output whose known shape is not [samples, classes]."""
    ranks = {name: axes for name, axes in _ranks(model).items() if axes is not None}
    for metric in metrics:
        rank, name = ranks.get(metric.output_name, 0), metric.spec.name
        if rank > _TABLE and metric.make().targets == "classes":
            tables = [output for output, axes in ranks.items() if axes == _TABLE]
            raise MetricError(
                f"{name} needs an output of shape [samples, classes], "
                f"and '{metric.output_name}' has {rank} axes",
                hint=f"write '{split_output(name)[0]}[{tables[0]}]', also in limits"
                if tables
                else "leave the metric out: no output has class scores",
            )


def _ranks(model: ir.Model) -> dict[str, int | None]:
    """How many axes each output has; None where that is not known."""
    outputs = model.graph.outputs
    return {value.name or "": len(value.shape) if value.shape is not None else None for value in outputs}


def class_counts(model: ir.Model) -> Mapping[str, int]:
    """The size of the second axis of each output, if it is known."""
    shapes = {value.name or "": value.shape for value in model.graph.outputs}
    axes = noted_axes(model)
    return {
        name: shape[1]
        for name, shape in shapes.items()
        if shape is not None and len(shape) >= 2 and isinstance(shape[1], int) and axes.get(name, 0) == 0
    }


def pieces_of(
    dataset: Dataset,
    inputs: Sequence[TensorSpec],
    batch_size: int,
    staged: StagedModel,
    *,
    whole_batches: bool = False,
) -> Iterator[Batch]:
    """Yield the samples in pieces whose tensors between stages fit into memory; each is checked for NaN.

    With ``whole_batches`` batches are not cut: a branch or a loop may look at all samples.
    """
    fixed = fixed_batch_size(inputs)
    cutter = Cutter(PieceSize(PIECE_BYTES))

    def sample_bytes(arrays: Mapping[str, Array]) -> int:
        return sum(held.nbytes for held in staged.run(arrays, quantized=False).values())

    with closing(checked(dataset.batches(fixed or batch_size))) as batches:
        for batch in batches:
            yield from (batch,) if fixed or whole_batches else cutter.cut(batch, sample_bytes)


# Float tensors between stages of one piece. They are held beside their quantized twins; larger ones are no
# faster.
PIECE_BYTES = 32 << 20
