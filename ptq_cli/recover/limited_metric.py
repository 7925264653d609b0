"""The metric that a recipe limits, on the samples that decide whether channels keep their factors."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Protocol

import onnx_ir as ir

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.core.errors import PtqError, UntrustedCodeError
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.evaluation.interval import Interval
from ptq_cli.evaluation.metrics.base import COMPARED, LabelMetric
from ptq_cli.evaluation.metrics.spec import metric_specs
from ptq_cli.evaluation.runs.judged import FLOAT, Judged, judged_measurement, judged_metrics
from ptq_cli.evaluation.runs.model_outputs import Place
from ptq_cli.evaluation.runs.targets import fitting_targets
from ptq_cli.models.batch_axes import noted_axes
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.text.numbers import format_interval, format_value

FEWEST_SAMPLES = 8  # of fewer an interval is too narrow to decide by


@dataclass(frozen=True, kw_only=True)
class MetricGain:
    """How much better a metric is of one quantized form than of another, on the same samples."""

    name: Annotated[str, "The metric."]
    unit: Annotated[Literal["share", "decibel", "number"], "Of the values; a share is from 0 to 1."]
    before: Annotated[float, "The quantized model's value without the rung."]
    after: Annotated[float, "With it."]
    gain: Annotated[tuple[float, float], "The ends of the 95 % interval of the gain; above 0 is better."]

    @property
    def is_sure(self) -> bool:
        """Whether the interval tells a gain from a loss."""
        return self.gain[0] > 0.0 or self.gain[1] < 0.0

    def values(self) -> dict[str, object]:
        """Return it for the metadata of a model, in so many digits as no number of threads changes."""
        before, after, low, high = (float(f"{x:.4g}") for x in (self.before, self.after, *self.gain))
        return {"name": self.name, "values": [before, after], "gain": [low, high]}


class MetricWatch(Protocol):
    """Follows a metric over the outputs of one quantized form."""

    def add(self, outputs: Sequence[Array]) -> None:
        """Take the outputs of the next piece to decide by."""

    def gain_over(self, other: Any) -> MetricGain | None:
        """Gain over the form of another watch; None if samples cannot tell."""


def limited_metric(
    recipe: Recipe, model: ir.Model, pieces: Sequence[Batch]
) -> Callable[[], "LimitedMetric"] | None:
    """Return a factory of watches of the first limited metric that these samples have a value of.

    None if no metric is limited that has a value for each model, or the samples lack its labels, or are few.
    """
    limited, outputs = recipe.gate.metrics, [value.name or "" for value in model.graph.outputs]
    if not limited or sum(piece.size for piece in pieces) < FEWEST_SAMPLES:
        return None
    have_labels = all(piece.labels is not None for piece in pieces)
    for spec in metric_specs(recipe.evaluation.metrics, recipe.metric, limited):
        if spec.name not in limited or (spec.needs_labels and not have_labels):
            continue
        try:
            (judged,) = judged_metrics([spec], outputs)
            leads = noted_axes(model).get(judged.output_name, 0) == 0
            if leads and judged.make().targets not in COMPARED:
                return partial(LimitedMetric, judged, pieces)
        except UntrustedCodeError:
            raise
        except PtqError:  # The evaluation says what is wrong with it.
            continue
    return None


class LimitedMetric:
    """Follows a metric over the outputs of one quantized form, piece by piece."""

    def __init__(self, judged: Judged, pieces: Sequence[Batch]) -> None:
        self._judged, self._pieces = judged, pieces
        self._metric: LabelMetric | None = judged.make()
        self._seen = 0

    def add(self, outputs: Sequence[Array]) -> None:
        """Take the outputs of the next piece; once they do not fit the metric, it is not followed."""
        place = Place(self._pieces[self._seen], self._seen)
        output, self._seen = outputs[self._judged.output], self._seen + 1
        if self._metric is None or not is_array(output):
            self._metric = None
            return
        try:
            self._metric.update(*fitting_targets(self._metric, self._judged.spec.name, output, place))
        except PtqError:
            self._metric = None

    def gain_over(self, other: "LimitedMetric") -> MetricGain | None:
        """Gain over another form, from paired samples; None where they cannot tell."""
        name, samples = self._judged.spec.name, sum(piece.size for piece in self._pieces)
        if self._metric is None or other._metric is None:
            return None
        with suppress(PtqError):
            pair = {FLOAT: other._metric, name: self._metric}
            found = judged_measurement(self._judged, pair, name, (), samples)
            drop = found.drop_interval
            if drop is not None and found.float_value is not None and math.isfinite(drop.low + drop.high):
                return MetricGain(
                    name=name,
                    unit=found.unit,
                    before=found.float_value,
                    after=found.quantized_value,
                    gain=(0.0 - drop.high, 0.0 - drop.low),
                )
        return None


def gain_in_words(metric: MetricGain, samples: str = "") -> str:
    """Say by how much a metric rose or fell on ``samples``, or that it may be chance.

    Example:
        >>> found = MetricGain(name="top1", unit="share", before=0.5, after=0.75, gain=(0.125, 0.375))
        >>> gain_in_words(found, "24 samples")
        'top1 from 50.00 % to 75.00 % on 24 samples, a gain of 12.50 to 37.50 points with 95 % confidence'
        >>> gain_in_words(MetricGain(name="perplexity", unit="number", before=33, after=32, gain=(-1, 2)))
        'perplexity from 33 to 32, which may be chance'
    """
    before, after = (format_value(value, metric.unit) for value in (metric.before, metric.after))
    change = f"{metric.name} from {before} to {after}"
    if not metric.is_sure:
        return f"{metric.name} stays at {after}" if before == after else f"{change}, which may be chance"
    low, high = metric.gain
    kind, ends = ("gain", (low, high)) if low > 0.0 else ("loss", (-high, -low))
    span = format_interval(Interval(*ends, "bootstrap"), metric.unit)
    unit = " points" if metric.unit == "share" else ""
    return f"{change} on {samples}, a {kind} of {span}{unit} with 95 % confidence"
