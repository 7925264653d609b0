"""Both models and every model with one layer changed, over the samples, once; and a row for each layer.

Memory holds one piece of a batch with the tensors between stages; of the samples before it, sums are kept.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ptq_cli.analysis.causes import Finding, layer_finding, layer_not_finite
from ptq_cli.analysis.judge import Judge, NoiseSums, QuantizationSums, Yardstick, drop
from ptq_cli.calibdata.dataset.batches import Batch, cut
from ptq_cli.core.arithmetic import dequantize
from ptq_cli.core.progress import ProgressCallback, RunProgress, silent
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.document.analysis_document import (
    LayerAnalysis,
    MetricSummary,
    RankedBy,
    Sensitivity,
    TensorAnalysis,
)
from ptq_cli.evaluation.document.report_document import LayerEntry, Saturation
from ptq_cli.evaluation.runs.evaluator import Evaluator
from ptq_cli.evaluation.runs.model_outputs import Axis, Place, first_nonfinite, turned
from ptq_cli.evaluation.runs.run_models import Runs, run_evaluator
from ptq_cli.models.pair_operators import RECURRENT
from ptq_cli.qdq.read.twin_graphs import ActivationPair
from ptq_cli.qdq.staged_model import Held, StagedModel, Tensors
from ptq_cli.report.text.result_warnings import CHOSEN_FLOAT
from ptq_cli.runtime.session import Session

_STAGE = "analyze"


@dataclass(frozen=True)
class Variants:
    """What was measured of the two models in which one layer is changed."""

    only_quantized: Judge
    left_float: Judge


@dataclass(frozen=True)
class NotFinite:
    """Where a tensor holds NaN or Inf first: the model, and the sample."""

    model: str
    sample: str


@dataclass(frozen=True, kw_only=True)
class LayerSubject:
    """What is analyzed.

    Attributes:
        staged: both models.
        pairs: the activation pairs, by tensor.
        channel_axes: the axis of the channels of those that have them.
        outputs: names of the models' outputs.
        layers: whose sensitivity is wanted.
        yardstick: what variants are judged by.
        constants: outputs that no stage computes, by name.
        output_axes: the axis of the samples of each output; none if all have them first.
        halves: models of which only a share is quantized, by its name.
    """

    staged: StagedModel
    pairs: Mapping[str, ActivationPair]
    channel_axes: Mapping[str, int]
    outputs: Sequence[str]
    layers: Sequence[str]
    yardstick: Yardstick
    constants: Mapping[str, Array] = field(default_factory=dict)
    output_axes: Sequence[Axis] = ()
    halves: Mapping[str, Session] = field(default_factory=dict)

    def axis_of(self, output: int) -> Axis:
        """Axis of the samples of an output."""
        return self.output_axes[output] if self.output_axes else 0


class Measured:
    """What the samples showed, and the state while they stream by.

    Attributes:
        samples: how many both models saw.
        float_output: the float model, judged as the variants of the quantized one are.
        output: the quantized model, judged likewise.
        quantizations: of each activation pair, by tensor: its quantization alone.
        noises: of each quantized activation and each layer's output, by tensor, as the quantized model runs.
        not_finite: where such a tensor holds NaN or Inf first, in the float or in the quantized model.
        shapes: of those tensors; None if a size changed, or is the samples'.
        judged: by layer.
        halves: by the name of what is quantized.
        sizes: shape of each input, for one sample.
    """

    def __init__(self, subject: LayerSubject, pool: ThreadPoolExecutor, evaluator: Evaluator) -> None:
        self._subject, self._pool, self._evaluator = subject, pool, evaluator
        self._floats: Tensors = {}
        self._quantized: Tensors = {}
        self.samples = 0
        self.float_output, self.output = Judge(subject.yardstick), Judge(subject.yardstick)
        self.not_finite: dict[str, NotFinite] = {}
        self.quantizations = {
            name: QuantizationSums(pair.parameters, subject.channel_axes.get(name))
            for name, pair in subject.pairs.items()
        }
        made = {name for stage in subject.staged.stages if stage.layer for name in stage.outputs}
        self.noises = {name: NoiseSums() for name in [*subject.pairs, *sorted(made - set(subject.pairs))]}
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.judged = {
            name: Variants(Judge(subject.yardstick), Judge(subject.yardstick)) for name in subject.layers
        }
        self.halves = {name: Judge(subject.yardstick) for name in subject.halves}

    def float_outputs(self, inputs: dict[str, Array]) -> list[Array]:
        """Run both models, and return the outputs of the float one."""
        staged = self._subject.staged
        both = [self._pool.submit(staged.run, inputs, quantized=form) for form in (False, True)]
        self._floats, self._quantized = (future.result() for future in both)
        return self._outputs(self._floats)

    def over(self, pieces: Iterable[Batch], total: int | None, progress: ProgressCallback) -> Iterator[Batch]:
        """Yield the pieces; each is analyzed once the evaluator has found its outputs to be right."""
        progress(RunProgress(_STAGE, 0, None))
        for piece in pieces:
            yield piece
            if self._evaluator.is_refused:
                return  # It says of which sample, and why.
            self._analyze(piece, total, progress)
            self._floats = self._quantized = {}
            self.samples += piece.size

    def _outputs(self, tensors: Tensors) -> list[Array]:
        staged, constants = self._subject.staged, self._subject.constants
        found = [
            constants[name] if name in constants else staged.floats(name, tensors[name])
            for name in self._subject.outputs
        ]
        return turned(found, self._subject.output_axes) if self._subject.output_axes else found

    def _analyze(self, piece: Batch, total: int | None, progress: ProgressCallback) -> None:
        place, index = Place(piece, self.samples), self._subject.yardstick.output
        wanted = self._outputs(self._floats)[index]
        self.float_output.update(wanted, wanted, place)
        self.output.update(wanted, self._outputs(self._quantized)[index], place)
        self.sizes = self.sizes or {name: array.shape for name, array in cut(piece, 0, 1).inputs.items()}
        tensors = [self._tensor(name, place) for name in self.noises]
        work = [self._half(name, wanted, place) for name in self.halves]
        for layer in self._subject.layers:
            work += [self._variant(layer, form, wanted, place) for form in (True, False)]
        work += tensors
        futures: list[Future[None]] = [self._pool.submit(task) for task in work]
        runs = total * len(work) if total is not None else None
        for number, future in enumerate(futures, 1):
            future.result()
            done = self.samples * len(work) + number * piece.size
            progress(RunProgress(_STAGE, done, runs, number=done, runs=runs))

    def _half(self, name: str, wanted: Array, place: Place) -> Callable[[], None]:
        index = self._subject.yardstick.output

        def run() -> None:
            made = self._subject.halves[name].run(place.batch.inputs)[index]
            (found,) = turned([made], [self._subject.axis_of(index)])
            self.halves[name].update(wanted, found, place)

        return run

    def _variant(self, layer: str, quantized: bool, wanted: Array, place: Place) -> Callable[[], None]:
        judged, index = self.judged[layer], self._subject.yardstick.output
        judge, base = (
            (judged.only_quantized, self._floats) if quantized else (judged.left_float, self._quantized)
        )

        def run() -> None:
            (found,) = turned(
                [self._subject.staged.changed(layer, base, quantized=quantized)],
                [self._subject.axis_of(index)],
            )
            judge.update(wanted, found, place)

        return run

    def _tensor(self, name: str, place: Place) -> Callable[[], None]:
        held, other = self._floats[name], self._quantized[name]
        values = self._subject.staged.floats(name, held)
        samples = place.batch.size
        self._remember(name, values, samples)
        quantization, noise = self.quantizations.get(name), self.noises[name]

        def run() -> None:
            if quantization is not None:
                quantization.update(values, samples)
            found = self._as_computed(name, other)
            noise.update(values, found, samples)
            if name not in self.not_finite and not noise.is_finite:
                of_float = first_nonfinite(values, place)
                where = of_float or first_nonfinite(found, place)
                self.not_finite[name] = NotFinite("float model" if of_float else "quantized model", where)

        return run

    def _as_computed(self, name: str, held: Held) -> Array:
        """Values that readers of integers see; of a tensor without a pair, its floats."""
        if held.integers is not None:
            return dequantize(held.integers, self._subject.pairs[name].parameters)
        return self._subject.staged.floats(name, held)

    def _remember(self, name: str, values: Array, samples: int) -> None:
        sizes: tuple[int | None, ...] = values.shape
        if sizes and sizes[0] == samples:
            sizes = (None, *sizes[1:])
        before = self.shapes.get(name, sizes)
        same_rank = len(before) == len(sizes)
        self.shapes[name] = (
            tuple(a if a == b else None for a, b in zip(before, sizes, strict=True)) if same_rank else ()
        )


def measure(
    subject: LayerSubject,
    pieces: Iterable[Batch],
    *,
    threads: int,
    total: int | None = None,
    progress: ProgressCallback = silent,
) -> Measured:
    """Run everything over the samples.

    The pieces must be so small that all tensors between stages are held twice.

    Edge case: The size of the pieces changes no value, as long as the models' outputs do not depend on it. Of
    a tensor or of an output that holds NaN or Inf, ratios and metrics are NaN.
    """
    with ThreadPoolExecutor(threads, _STAGE) as pool:
        # Of the quantized model nothing is asked: NaN in its output is what the analysis looks for.
        evaluator = Evaluator(subject.outputs, (), ())
        found = Measured(subject, pool, evaluator)
        try:
            run_evaluator(evaluator, Runs(found.float_outputs, ()), found.over(pieces, total, progress))
        finally:
            # Whoever interrupts waits for no variant that has not begun.
            pool.shutdown(wait=False, cancel_futures=True)
    evaluator.evaluations()  # or it says of which sample the float model's output holds NaN
    return found


def layer_rows(
    layers: Sequence[LayerEntry],
    subject: LayerSubject,
    measured: Measured,
    tensors: Sequence[TensorAnalysis],
    work: Mapping[str, int | None],
    metric: MetricSummary | None,
    order: RankedBy,
    saturation: Saturation,
) -> tuple[LayerAnalysis, ...]:
    """A row for each layer of the plan; ``saturation`` is what can saturate on this processor."""
    saturating = {layer.name: layer for layer in saturation.saturating}
    made = {name: stage.outputs[0] for stage in subject.staged.stages for name in stage.nodes}
    sensitivities = _ranked(measured, metric, order) if metric is not None else {}
    rows = []
    for layer in layers:
        output, sensitivity = made.get(layer.name, ""), sensitivities.get(layer.name)
        is_meant = CHOSEN_FLOAT in layer.reason or layer.op in RECURRENT
        is_fused = layer.integer or is_meant or layer.name not in subject.staged.layers
        found = _not_finite(layer.name, measured.judged.get(layer.name), measured) or layer_finding(
            layer.name,
            _findings_around(layer, output, tensors),
            not_fused="" if is_fused else layer.reason,
            gain_db=_gain_db(sensitivity, metric),
            saturating=saturating.get(layer.name),
        )
        noise, alone = measured.noises.get(output), measured.quantizations.get(output)
        rows.append(
            LayerAnalysis(
                name=layer.name,
                op=layer.op,
                integer=layer.integer,
                reason=layer.reason,
                multiply_accumulates=work.get(layer.name),
                output=output,
                sqnr_accumulated_db=noise.sqnr_db if noise is not None else None,
                sqnr_isolated_db=alone.sqnr_db if alone is not None else None,
                sensitivity=sensitivity,
                cause=found.cause,
                finding=found.finding,
                remedy=found.remedy,
            )
        )
    return tuple(rows)


def _not_finite(name: str, variants: Variants | None, measured: Measured) -> Finding | None:
    """Finding for a layer whose form decides whether the output is finite; None otherwise."""
    if variants is None:
        return None
    found = layer_not_finite(
        name,
        only_quantized=variants.only_quantized.not_finite,
        left_float=variants.left_float.not_finite,
        whole=measured.output.not_finite,
    )
    return found if found.cause else None


def _findings_around(
    layer: LayerEntry, output: str, tensors: Sequence[TensorAnalysis]
) -> list[tuple[float, str, Finding]]:
    """Findings for the tensors that a layer reads and computes."""
    return [
        (item.sqnr_isolated_db, item.name, Finding(item.cause, item.finding, item.remedy))
        for item in tensors
        if layer.name in item.layers or (item.name == output and layer.integer)
    ]


def _gain_db(sensitivity: Sensitivity | None, metric: MetricSummary | None) -> float | None:
    if sensitivity is None or metric is None:
        return None
    return sensitivity.sqnr_left_float_db - metric.sqnr_db


def _ranked(measured: Measured, metric: MetricSummary, order: RankedBy) -> dict[str, Sensitivity]:
    found = {
        name: Sensitivity(
            metric_only_quantized=judged.only_quantized.value,
            metric_left_float=judged.left_float.value,
            drop_only_quantized=_drop(metric, judged.only_quantized.value),
            drop_left_float=_drop(metric, judged.left_float.value),
            sqnr_only_quantized_db=judged.only_quantized.sqnr_db,
            sqnr_left_float_db=judged.left_float.sqnr_db,
            rank=1,
        )
        for name, judged in measured.judged.items()
    }

    def worst_first(name: str) -> tuple[float, float]:
        item = found[name]
        if math.isnan(item.sqnr_only_quantized_db):  # Nothing is worse than an output that is not finite.
            return (-math.inf, -math.inf)
        worse = item.metric_only_quantized if metric.higher_is_better else -item.metric_only_quantized
        return (worse if order == "metric" else 0.0, item.sqnr_only_quantized_db)

    return {
        name: replace(found[name], rank=rank)
        for rank, name in enumerate(sorted(found, key=worst_first), start=1)
    }


def _drop(metric: MetricSummary, value: float) -> float | None:
    return drop(metric.float_value, value, higher_is_better=metric.higher_is_better)
