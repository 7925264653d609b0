"""Metrics that judge each model: made before any model runs, and measured with intervals."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from ptq_cli.core.errors import MetricError
from ptq_cli.core.words import did_you_mean
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.free_states import Indices, drawn_by
from ptq_cli.evaluation.metrics.base import LabelMetric
from ptq_cli.evaluation.metrics.class_accuracy import ClassAccuracy
from ptq_cli.evaluation.metrics.spec import Make, MetricSpec, metric_maker
from ptq_cli.evaluation.uncertainty import with_interval, with_paired_intervals
from ptq_cli.recipe.locations import relative_location

FLOAT, PYTORCH = "float model", "PyTorch model"
CLASS_ACCURACY = "class_accuracy"


@dataclass(frozen=True)
class Judged:
    """A metric, and the output that it judges: an index and a name."""

    spec: MetricSpec
    output: int
    output_name: str
    make: Make


def judged_metrics(
    specs: Iterable[MetricSpec], outputs: Sequence[str], classes: Mapping[str, int] | None = None
) -> tuple[Judged, ...]:
    """Metrics with what makes them, once it is known that they can be made.

    ``classes`` are sizes of the outputs' second axes, if they are known.
    """
    found = []
    for spec in specs:
        name = spec.output if spec.output is not None else outputs[0]
        if name not in outputs:
            raise MetricError(
                f"{spec.name}: the model has no output '{name}'{did_you_mean(name, list(outputs))}",
                hint=f"its outputs: {', '.join(outputs)}",
            )
        make = metric_maker(spec, (classes or {}).get(name))
        found.append(Judged(spec, outputs.index(name), name, make))
    return tuple(found)


def judged_measurement(
    judged: Judged,
    metrics: Mapping[str, LabelMetric],
    model: str,
    class_names: Sequence[str],
    samples: int,
    recordings: Indices | None = None,
) -> Measurement:
    """Measurement of a quantized model and of the float one, with intervals."""
    spec, of_float, of_quantized = judged.spec, metrics[FLOAT], metrics[model]
    code = spec.code
    plain = Measurement(
        name=spec.name,
        unit=of_quantized.unit,
        needs_labels=spec.needs_labels,
        higher_is_better=of_quantized.higher_is_better,
        quantized_value=of_quantized.compute(),
        float_value=of_float.compute(),
        output=judged.output_name,
        pytorch_value=metrics[PYTORCH].compute() if PYTORCH in metrics else None,
        computed_by=relative_location(code, Path.cwd()) if code is not None else None,
        arguments={name: json.dumps(value, default=str) for name, value in spec.arguments.items()},
    )
    drawn = [drawn_by(recordings, item.resampling(), samples) for item in (of_float, of_quantized)]
    measured = with_paired_intervals(plain, *drawn)
    if spec.metric != CLASS_ACCURACY:
        return measured
    pair = cast(ClassAccuracy, of_float), cast(ClassAccuracy, of_quantized)
    return replace(measured, by_class=ClassAccuracy.by_class(*pair, class_names))


def compared_measurement(
    judged: Judged, metric: LabelMetric, samples: int, recordings: Indices | None = None
) -> Measurement:
    """Measurement of a metric whose labels are of the float model: it has one value."""
    plain = Measurement(
        name=judged.spec.name,
        unit=metric.unit,
        needs_labels=False,
        higher_is_better=metric.higher_is_better,
        quantized_value=metric.compute(),
        output=judged.output_name,
    )
    return with_interval(plain, drawn_by(recordings, metric.resampling(), samples), samples)
