"""Every metric of every model, fed batch by batch; what a checkpoint holds of an evaluation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.core.errors import EmptyDataError, MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.document.measurement import Generation, Measurement, Stream
from ptq_cli.evaluation.free_states import Indices, SamplePlaces, SteppedMetric, require_steps, stream_of
from ptq_cli.evaluation.metrics.base import COMPARED, LabelMetric, State, below
from ptq_cli.evaluation.runs.comparisons import ChangeCollector, Comparisons
from ptq_cli.evaluation.runs.judged import (
    FLOAT_MODEL,
    Judged,
    compared_measurement,
    fitting_targets,
    judged_measurement,
)
from ptq_cli.evaluation.runs.model_outputs import (
    NonfiniteSamples,
    Place,
    require_outputs,
    require_same_shapes,
)

SEPARATOR = "/"  # stands between the parts of a key of the state; metrics' own keys hold none


@dataclass(frozen=True)
class Evaluation:
    """What the evaluation measured of one quantized model, and of its steps where it carries states."""

    samples: int
    measurements: tuple[Measurement, ...]
    stream: Stream | None = None
    generation: Generation | None = None
    left_out: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Outputs that could not be compared, with the reason."""


@dataclass(frozen=True)
class ModelOutputs:
    """Each model's outputs of one batch."""

    of_float: Sequence[Array]
    quantized: Sequence[Sequence[Array]]


class Evaluator:
    """Holds the metrics of a float model and of quantized ones.

    Each quantized model may have a watch, which sees what its metrics see. Where outputs are ``carried``, the
    second half of the quantized models are those of the first on the float model's states. Outputs of
    ``varying`` size, which depends on the data, may differ between the models.
    """

    def __init__(
        self,
        outputs: Sequence[str],
        metrics: Sequence[Judged],
        quantized: Sequence[str] = ("quantized model",),
        *,
        class_names: Sequence[str] = (),
        watches: Sequence[ChangeCollector] = (),
        carried: Mapping[str, str] | None = None,
        varying: frozenset[str] = frozenset(),
    ) -> None:
        self.samples = 0
        self.batches = 0
        self._outputs = outputs
        self._metrics = metrics
        self._quantized = quantized
        self._class_names = class_names
        self._watches = watches
        self._carried = carried or {}
        self._places = SamplePlaces() if carried else None
        self._models = (FLOAT_MODEL, *quantized)
        self._labeled = [self._made(judged) for judged in metrics]
        # A metric that holds one model against the other needs the same shapes.
        held = {
            judged.output_name
            for judged, made in zip(metrics, self._labeled, strict=True)
            if any(metric.targets in COMPARED for metric in made.values())
        }
        self._varying = varying - held
        self._comparisons = [Comparisons(outputs, self._varying) for _ in quantized]
        self._nonfinite = NonfiniteSamples()

    def _made(self, judged: Judged) -> dict[str, LabelMetric]:
        """A metric for each model; one that compares has none for the float model."""
        metrics = {model: judged.make() for model in self._models}
        return {
            model: metric
            for model, metric in metrics.items()
            if model in self._quantized or metric.targets not in COMPARED
        }

    @property
    def not_resumable(self) -> list[str]:
        """Names of the metrics that cannot continue from a checkpoint."""
        pairs = zip(self._metrics, self._labeled, strict=True)
        return [
            judged.spec.name
            for judged, by_model in pairs
            if not all(getattr(metric, "is_resumable", True) for metric in by_model.values())
        ]

    @property
    def indivisible(self) -> dict[str, str]:
        """Metrics whose parts cannot be measured apart, with the reason."""
        pairs = zip(self._metrics, self._labeled, strict=True)
        reasons = {
            judged.spec.name: str(getattr(next(iter(by_model.values())), "indivisible", ""))
            for judged, by_model in pairs
        }
        return {name: reason for name, reason in reasons.items() if reason}

    @property
    def is_refused(self) -> bool:
        """Whether an output held NaN or Inf, so that there will be no result."""
        return bool(self._nonfinite)

    def refusal(self, seen: int) -> MetricError:
        """Error that names the first sample with NaN or Inf, of so many that were seen."""
        return self._nonfinite.refusal(seen)

    def update(self, batch: Batch, outputs: ModelOutputs) -> None:
        """Count one batch; after the first NaN only those that hold some."""
        place = Place(batch, self.samples)
        by_model = self._by_model(outputs, place)
        for model, found in by_model.items():
            self._nonfinite.look(model, found, self._outputs, place)
        if not self._nonfinite:
            for judged, metrics in zip(self._metrics, self._labeled, strict=True):
                for model, metric in metrics.items():
                    _feed(metric, judged, by_model[model], outputs.of_float, place)
            for comparison, found in zip(self._comparisons, outputs.quantized, strict=True):
                comparison.update(outputs.of_float, found, place)
            for watch, found in zip(self._watches, outputs.quantized, strict=False):
                watch.update(outputs.of_float[0], found[0], place)
        if self._places is not None:
            self._places.add(require_steps(batch))
        self.samples += batch.size
        self.batches += batch.completes

    def evaluations(self) -> tuple[Evaluation, ...]:
        """Measurements of each quantized model."""
        if not self.samples:
            raise EmptyDataError(
                "the evaluation data has no sample",
                hint="set data under [evaluation] in the recipe to a data set that has samples",
            )
        if self.is_refused:
            raise self.refusal(self.samples)
        recordings = self._places.recordings if self._places is not None else None
        found = [
            Evaluation(
                self.samples,
                (*self._judged(model, recordings), *compared.measurements(self.samples, recordings)),
                left_out=compared.left_out,
            )
            for model, compared in zip(self._quantized, self._comparisons, strict=True)
        ]
        if self._places is None:
            return tuple(found)
        own, forced = found[: len(found) // 2], found[len(found) // 2 :]
        streams = (
            stream_of(self._carried, self._places, self._stepped(index), item.measurements)
            for index, item in enumerate(forced)
        )
        return tuple(replace(item, stream=stream) for item, stream in zip(own, streams, strict=True))

    def _stepped(self, index: int) -> list[SteppedMetric]:
        """Metrics of a quantized model by step: the SQNR of outputs, and named metrics."""
        models = [self._quantized[place] for place in (index, index + len(self._quantized) // 2)]
        free, forced = (self._comparisons[self._quantized.index(model)].named("sqnr_db") for model in models)
        found = [
            SteppedMetric(
                name=name,
                unit=metric.unit,
                higher_is_better=True,
                free=metric.resampling(),
                forced=forced[name].resampling(),
            )
            for name, metric in free.items()
        ]
        return found + [
            SteppedMetric(
                name=judged.spec.name,
                unit=metrics[models[0]].unit,
                higher_is_better=metrics[models[0]].higher_is_better,
                free=metrics[models[0]].resampling(),
                forced=metrics[models[1]].resampling(),
                of_float=metrics[FLOAT_MODEL].resampling() if FLOAT_MODEL in metrics else None,
            )
            for judged, metrics in zip(self._metrics, self._labeled, strict=True)
        ]

    def state(self) -> State:
        """Arrays for a checkpoint, of all metrics."""
        return self.metrics_state() | self.watches_state()

    def metrics_state(self) -> State:
        """Arrays for a checkpoint, without those of the watches."""
        return _state_of(self._holders())

    def watches_state(self) -> State:
        """Arrays for a checkpoint, of the watches."""
        return _state_of(self._watched())

    def load_state(self, state: State, *, batches: int, samples: int) -> None:
        """Go on from what a checkpoint held after so many batches."""
        self.batches, self.samples = batches, samples
        for prefix, holder in (*self._holders(), *self._watched()):
            holder.join([below(state, prefix)])

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set: others have those before."""
        self.samples = sample
        for _, holder in self._holders():
            holder.start_at(sample)

    def join(self, parts: Sequence[State], watched: Sequence[State], *, samples: int) -> None:
        """Go on from what was measured of all parts of a set.

        ``parts`` are what ``metrics_state`` gave of each, in the order of the set, ``watched`` what
        ``watches_state`` gave, in any order.
        """
        self.batches, self.samples = len(parts), samples
        for prefix, holder in self._holders() if parts else ():
            holder.join([below(state, prefix) for state in parts])
        for prefix, watch in self._watched():
            watch.join([below(state, prefix) for state in watched])

    def _holders(self) -> Iterator[tuple[str, LabelMetric | Comparisons | SamplePlaces]]:
        """Yield what holds numbers, with the beginning of the keys of its state."""
        for index, by_model in enumerate(self._labeled):
            for model, metric in by_model.items():
                yield SEPARATOR.join(("metric", str(index), str(self._models.index(model)), "")), metric
        for index, comparison in enumerate(self._comparisons):
            yield SEPARATOR.join(("pair", str(index), "")), comparison
        if self._places is not None:
            yield SEPARATOR.join(("places", "")), self._places

    def _watched(self) -> Iterator[tuple[str, ChangeCollector]]:
        for index, watch in enumerate(self._watches):
            yield SEPARATOR.join(("watch", str(index), "")), watch

    def _by_model(self, outputs: ModelOutputs, place: Place) -> dict[str, Sequence[Array]]:
        found = {FLOAT_MODEL: outputs.of_float} | dict(zip(self._quantized, outputs.quantized, strict=True))
        for model, arrays in found.items():
            require_outputs(model, arrays, self._outputs)
        for model, arrays in found.items():
            require_same_shapes(outputs.of_float, arrays, self._outputs, model, place, self._varying)
        return found

    def _judged(self, model: str, recordings: Indices | None) -> Iterator[Measurement]:
        for judged, metrics in zip(self._metrics, self._labeled, strict=True):
            if FLOAT_MODEL in metrics:
                yield judged_measurement(judged, metrics, model, self._class_names, self.samples, recordings)
            else:
                yield compared_measurement(judged, metrics[model], self.samples, recordings)


def _state_of(
    holders: Iterable[tuple[str, LabelMetric | Comparisons | SamplePlaces | ChangeCollector]],
) -> State:
    return {prefix + key: array for prefix, holder in holders for key, array in holder.state().items()}


def _feed(
    metric: LabelMetric, judged: Judged, outputs: Sequence[Array], of_float: Sequence[Array], place: Place
) -> None:
    output, reference = outputs[judged.output], of_float[judged.output]
    try:
        metric.update(*fitting_targets(metric, judged.spec.name, output, place, reference))
    except MetricError as error:
        at = f", at {place.whole()}"
        raise MetricError(error.message + ("" if at in error.message else at), hint=error.hint) from error
