"""Both models on the same batches, once, and every metric of the way."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.calibdata.batch import Batch
from ptq_cli.core.errors import EmptyDataError, LabelError, MetricError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.report.measurement import Measurement
from ptq_cli.report.metrics.base import LabelMetric, Labels, PairMetric
from ptq_cli.report.metrics.registry import LABEL_METRICS, PAIR_METRICS, requested_label_metrics
from ptq_cli.report.outputs import Place, require_comparable
from ptq_cli.report.uncertainty import with_interval, with_paired_intervals

Run = Callable[[dict[str, Array]], Sequence[Array]]
"""Inputs by name to outputs in the order of the model's output names."""

Watch = Callable[[Array, Array, Place], None]
"""The float and the quantized model's first output of a batch."""


@dataclass(frozen=True)
class Evaluation:
    """What the evaluation measured.

    Attributes:
        samples: how many samples both models saw.
        measurements: the label metrics as they were asked for, then the comparisons output by output.
    """

    samples: int
    measurements: tuple[Measurement, ...]


def evaluate_models(
    float_run: Run,
    quantized_run: Run,
    batches: Iterable[Batch],
    *,
    output_names: Sequence[str],
    metrics: Sequence[str],
    total: int | None = None,
    progress: ProgressCallback = silent,
    watch: Watch | None = None,
) -> Evaluation:
    """Run both models over ``batches`` once and measure.

    Label metrics read the first output. Comparisons are made for every output: under the plain name for the
    first, as ``sqnr_db[name]`` for each further one; a comparison that has no meaning for an output, such as
    ``top1_agreement`` of an embedding's feature map, is not reported for it. Memory holds one batch, and what
    each sample adds to a metric: see ``SampleSums``.

    Args:
        float_run: the float model.
        quantized_run: the quantized model.
        batches: the evaluation set; labels only where a metric needs them.
        output_names: names of the outputs, the same for both models.
        metrics: names of the metrics that need labels; label-free ones are always computed.
        total: number of samples, for the progress, or None if that is not known.
        progress: called after each batch.
        watch: sees the first outputs of each batch.

    Shapes:
        the first output is [N, classes] where a label metric is asked for; labels are [N].

    Edge case:
        The size of the batches changes no value, as long as the models' outputs do not depend on it.

    Raises:
        UnknownNameError: a metric does not exist.
        LabelError: a metric needs labels and a batch has none, or a label is outside the classes.
        MetricError: an output holds NaN or Inf, or does not fit a metric or the other model's output.
        EmptyDataError: there is no sample.

    Example:
        >>> batch = Batch({"x": np.eye(2)}, labels=np.array([0, 0]), names=("a", "b"))
        >>> result = evaluate_models(
        ...     lambda inputs: [inputs["x"]], lambda inputs: [inputs["x"][::-1]], [batch],
        ...     output_names=["scores"], metrics=["top1"],
        ... )
        >>> result.samples, result.measurements[0].name, result.measurements[0].drop
        (2, 'top1', 0.0)
        >>> {m.name: m.quantized_value for m in result.measurements}["top1_agreement"]
        0.0
    """
    labelled = _LabelledMetrics(requested_label_metrics(metrics))
    compared = _Comparisons(output_names)
    samples = 0
    for batch in batches:
        place = Place(batch, samples)
        float_outputs, quantized_outputs = float_run(batch.inputs), quantized_run(batch.inputs)
        require_comparable(float_outputs, quantized_outputs, output_names, place)
        labelled.update(float_outputs[0], quantized_outputs[0], place)
        compared.update(float_outputs, quantized_outputs, place)
        if watch is not None:
            watch(float_outputs[0], quantized_outputs[0], place)
        samples += batch.size
        progress(Progress("evaluate", samples, total))
    if not samples:
        raise EmptyDataError(
            "the evaluation data has no sample",
            hint="name evaluation data that is not empty: [evaluation] data in the recipe",
        )
    return Evaluation(samples, (*labelled.measurements(), *compared.measurements(samples)))


class _LabelledMetrics:
    """The metrics that need labels, each once for either model."""

    def __init__(self, names: Sequence[str]) -> None:
        self._pairs = {name: (LABEL_METRICS[name](), LABEL_METRICS[name]()) for name in names}

    def update(self, float_output: Array, quantized_output: Array, place: Place) -> None:
        if not self._pairs:
            return
        labels = _require_labels(place, list(self._pairs))
        if float_output.ndim == 2:
            _require_range(labels, float_output.shape[1], place)
        if float_output.shape[:1] != labels.shape:
            raise MetricError(
                f"the first output has shape {format_shape(float_output.shape)} for a batch of {len(labels)} "
                f"samples, at {place.whole()}",
                hint="a metric that needs labels needs an output of shape [samples, classes]",
            )
        for of_float, of_quantized in self._pairs.values():
            of_float.update(float_output, labels)
            of_quantized.update(quantized_output, labels)

    def measurements(self) -> list[Measurement]:
        return [_with_labels(name, *pair) for name, pair in self._pairs.items()]


def _with_labels(name: str, of_float: LabelMetric, of_quantized: LabelMetric) -> Measurement:
    plain = Measurement(
        name=name,
        unit=of_quantized.unit,
        needs_labels=True,
        higher_is_better=of_quantized.higher_is_better,
        quantized_value=of_quantized.compute(),
        float_value=of_float.compute(),
    )
    return with_paired_intervals(plain, of_float.sample_sums(), of_quantized.sample_sums())


def _require_labels(place: Place, metrics: Sequence[str]) -> Labels:
    labels = place.batch.labels
    if labels is None:
        raise LabelError(
            f"{' and '.join(metrics)} need labels, and the evaluation data has none at {place.whole()}",
            hint="name data with labels, or leave the metric out: label-free ones are always computed",
        )
    if labels.shape != (place.batch.size,):
        raise LabelError(
            f"labels have shape {list(labels.shape)} for a batch of {place.batch.size} samples, "
            f"at {place.whole()}",
            hint="give one class index for each sample",
        )
    return labels


def _require_range(labels: Labels, class_count: int, place: Place) -> None:
    outside = (labels < 0) | (labels >= class_count)
    if outside.any():
        index = int(np.argmax(outside))
        raise LabelError(
            f"the label {labels[index]} of {place.sample(index)} is outside the {class_count} classes "
            f"0 to {class_count - 1}",
            hint="labels are class indices that start at 0, in the order of the model's outputs",
        )


class _Comparisons:
    """The label-free metrics of every output; which apply is settled on the first batch."""

    def __init__(self, output_names: Sequence[str]) -> None:
        self._output_names = output_names
        self._by_output: list[dict[str, PairMetric]] = []

    def update(
        self, float_outputs: Sequence[Array], quantized_outputs: Sequence[Array], place: Place
    ) -> None:
        samples = place.batch.size
        if not self._by_output:
            self._by_output = [_applicable(output, samples) for output in float_outputs]
        for name, metrics, expected, found in zip(
            self._output_names, self._by_output, float_outputs, quantized_outputs, strict=True
        ):
            for metric in metrics.values():
                if not metric.accepts(expected, samples):
                    raise MetricError(
                        f"output '{name}' has another layout at {place.whole()} than in the first batch",
                        hint="an output must keep its rank and have the samples on axis 0 in every batch",
                    )
                metric.update(expected, found)

    def measurements(self, samples: int) -> list[Measurement]:
        return [
            with_interval(
                Measurement(
                    name=name if index == 0 else f"{name}[{self._output_names[index]}]",
                    unit=metric.unit,
                    needs_labels=False,
                    higher_is_better=metric.higher_is_better,
                    quantized_value=metric.compute(),
                ),
                metric.sample_sums(),
                samples,
            )
            for index, metrics in enumerate(self._by_output)
            for name, metric in metrics.items()
        ]


def _applicable(output: Array, samples: int) -> dict[str, PairMetric]:
    return {name: metric() for name, metric in PAIR_METRICS.items() if metric.accepts(output, samples)}
