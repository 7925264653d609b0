"""What the metrics that judge models have measured, with intervals, as a report holds it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from ptq_cli.recipe.locations import relative_location
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.evaluation.judged_metrics import Judged
from ptq_cli.report.evaluation.uncertainty import with_interval, with_paired_intervals
from ptq_cli.report.metrics.base import LabelMetric
from ptq_cli.report.metrics.classes.class_accuracy import ClassAccuracy

FLOAT, PYTORCH = "float model", "PyTorch model"
CLASS_ACCURACY = "class_accuracy"


def judged_measurement(
    judged: Judged, metrics: Mapping[str, LabelMetric], model: str, class_names: Sequence[str]
) -> Measurement:
    """Return what a metric measured of a quantized model and of the float one, with their intervals.

    Args:
        judged: the metric, and the output that it is computed on.
        metrics: what each model was measured with.
        model: which of them is the quantized one.
        class_names: of the data, by label.
    """
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
    measured = with_paired_intervals(plain, of_float.resampling(), of_quantized.resampling())
    if spec.metric != CLASS_ACCURACY:
        return measured
    pair = cast(ClassAccuracy, of_float), cast(ClassAccuracy, of_quantized)
    return replace(measured, by_class=ClassAccuracy.by_class(*pair, class_names))


def compared_measurement(judged: Judged, metric: LabelMetric, samples: int) -> Measurement:
    """Return what a metric measured of which the float model gives the labels: it has one value."""
    plain = Measurement(
        name=judged.spec.name,
        unit=metric.unit,
        needs_labels=False,
        higher_is_better=metric.higher_is_better,
        quantized_value=metric.compute(),
        output=judged.output_name,
    )
    return with_interval(plain, metric.resampling(), samples)
