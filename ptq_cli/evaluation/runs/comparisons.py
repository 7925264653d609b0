"""Label-free metrics of every output of a quantized model, and which samples change their class."""

import json
from collections.abc import Iterator, Sequence

import numpy as np

from ptq_cli.calibdata.dataset.labels import is_class_index
from ptq_cli.core.documents import decode, encode
from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.document.report_document import ChangedSample, Changes
from ptq_cli.evaluation.free_states import Indices, drawn_by
from ptq_cli.evaluation.metrics.base import PairMetric, State, below
from ptq_cli.evaluation.metrics.metric_registry import PAIR_METRICS
from ptq_cli.evaluation.metrics.value_errors import WorstChannelSqnr
from ptq_cli.evaluation.runs.model_outputs import Place
from ptq_cli.evaluation.uncertainty import with_interval

LEFT_OUT = "left out"  # stands in the state where an output's metrics would: why it has none


class Comparisons:
    """Compares a quantized model's outputs with the float model's.

    An output of ``varying`` size is left out from the batch on in which it cannot be compared.
    """

    def __init__(self, output_names: Sequence[str], varying: frozenset[str] = frozenset()) -> None:
        self._output_names = output_names
        self._varying = varying
        self._left_out: dict[int, str] = {}
        self._by_output: list[dict[str, PairMetric]] = []
        self._first = 0

    def update(
        self, float_outputs: Sequence[Array], quantized_outputs: Sequence[Array], place: Place
    ) -> None:
        """Count one batch."""
        samples = place.batch.size
        if not self._by_output:
            self._by_output = [
                {
                    name: metric()
                    for name, metric in PAIR_METRICS.items()
                    if index not in self._left_out and metric.accepts(output, samples)
                }
                for index, output in enumerate(float_outputs)
            ]
            for _, metric in self._by_prefix():
                metric.start_at(self._first)
        for index, (name, metrics, expected, found) in enumerate(
            zip(self._output_names, self._by_output, float_outputs, quantized_outputs, strict=True)
        ):
            if name in self._varying and not _comparable(metrics, expected, found, samples):
                shapes = f"{format_shape(expected.shape)} in float and {format_shape(found.shape)} quantized"
                self._left_out.setdefault(index, f"it has shape {shapes}, at {place.whole()}")
                metrics.clear()
            for metric in metrics.values():
                if not metric.accepts(expected, samples):
                    raise MetricError(
                        f"output '{name}' has a different shape at {place.whole()} than in the first batch",
                        hint="in every batch, an output must have the same rank, with the samples on axis 0",
                    )
                metric.update(expected, found)

    def measurements(self, samples: int, recordings: Indices | None = None) -> list[Measurement]:
        """Measurements output by output: under the plain name for the first.

        Intervals are of drawn ``recordings`` where the samples are steps of them.
        """
        return [
            with_interval(
                Measurement(
                    name=self._name(name, index),
                    unit=metric.unit,
                    needs_labels=False,
                    higher_is_better=metric.higher_is_better,
                    quantized_value=metric.compute(),
                    output=self._output_names[index],
                    channel=metric.channel if isinstance(metric, WorstChannelSqnr) else None,
                ),
                drawn_by(recordings, metric.resampling(), samples),
                samples,
            )
            for index, metrics in enumerate(self._by_output)
            for name, metric in metrics.items()
        ]

    def _name(self, metric: str, index: int) -> str:
        return metric if index == 0 else f"{metric}[{self._output_names[index]}]"

    @property
    def left_out(self) -> dict[str, str]:
        """Outputs that could not be compared, with the reason."""
        return {self._output_names[index]: reason for index, reason in sorted(self._left_out.items())}

    def named(self, metric: str) -> dict[str, PairMetric]:
        """A metric of each output that has it, by its name in a report."""
        found = enumerate(self._by_output)
        return {self._name(metric, index): metrics[metric] for index, metrics in found if metric in metrics}

    def state(self) -> State:
        """Arrays for a checkpoint."""
        reasons = {
            f"{index}/{LEFT_OUT}/why": np.frombuffer(reason.encode(), np.uint8)
            for index, reason in self._left_out.items()
        }
        return reasons | {
            f"{index}/{name}/{key}": array
            for index, metrics in enumerate(self._by_output)
            for name, metric in metrics.items()
            for key, array in metric.state().items()
        }

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set."""
        self._first = sample

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was compared in all parts of a set, in their order."""
        for state in states:
            why = {path: array for path, array in state.items() if path.split("/")[1] == LEFT_OUT}
            for path, array in why.items():
                self._left_out.setdefault(int(path.split("/")[0]), array.tobytes().decode())
        # What one part leaves out is left out of all.
        states = [
            {path: array for path, array in state.items() if int(path.split("/")[0]) not in self._left_out}
            for state in states
        ]
        self._by_output = self._known(states[0])
        kinds = {frozenset(tuple(path.split("/")[:2]) for path in state) for state in states}
        try:
            if len(kinds) != 1:
                raise ValueError("not all have the same metrics")  # noqa: TRY301 - as what the metrics raise
            for prefix, metric in self._by_prefix():
                metric.join([below(state, prefix) for state in states])
        except ValueError as error:
            raise MetricError(
                f"an output's layout differs between batches, so the parts do not fit each other: {error}",
                hint="evaluate all samples in one process, or with --set data.batch_size=1",
            ) from error

    def _known(self, state: State) -> list[dict[str, PairMetric]]:
        known = {tuple(path.split("/")[:2]) for path in state}
        return [
            {name: metric() for name, metric in PAIR_METRICS.items() if (str(index), name) in known}
            for index in range(len(self._output_names) if state else 0)
        ]

    def _by_prefix(self) -> Iterator[tuple[str, PairMetric]]:
        for index, metrics in enumerate(self._by_output):
            for name, metric in metrics.items():
                yield f"{index}/{name}/", metric


def _comparable(metrics: dict[str, PairMetric], expected: Array, found: Array, samples: int) -> bool:
    """Say whether both models' output of a batch have one shape, which all metrics of it can take."""
    return expected.shape == found.shape and all(item.accepts(expected, samples) for item in metrics.values())


_MOST_SAMPLES = 1000


class ChangeCollector:
    """Notes samples that two models put into different classes, the first thousand by name."""

    def __init__(self) -> None:
        self._total = 0
        self._samples: list[ChangedSample] = []
        self._applies = True

    def update(self, float_output: Array, quantized_output: Array, place: Place) -> None:
        """Compare a batch's first outputs.

        Shapes: float_output, quantized_output: [N, classes]; of other outputs nothing is noted, ever.
        """
        self._applies &= float_output.ndim == 2 and float_output.shape[0] == place.batch.size
        self._applies &= float_output.shape[-1:] > (1,) and float_output.shape == quantized_output.shape
        if not self._applies:
            return
        before, after = np.argmax(float_output, axis=1), np.argmax(quantized_output, axis=1)
        for row in np.flatnonzero(before != after):
            self._total += 1
            if len(self._samples) < _MOST_SAMPLES:
                self._samples.append(self._sample(int(row), int(before[row]), int(after[row]), place))

    def state(self) -> State:
        """Arrays for a checkpoint."""
        text = json.dumps([self._applies, encode(Changes(self._total, (), tuple(self._samples)))])
        return {"noted": np.frombuffer(text.encode(), np.uint8)}

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was noted of all parts of a set, whichever samples a part had.

        Raises:
            ValueError: a state is not JSON.
            ReportError: a state does not hold changes.
        """
        noted = [json.loads(state["noted"].tobytes()) for state in states]
        parts: list[Changes] = [decode(Changes, changes, "changes") for _, changes in noted]
        self._applies = all(applies for applies, _ in noted)
        self._total = sum(part.total for part in parts)
        ordered = sorted((sample for part in parts for sample in part.samples), key=lambda item: item.index)
        self._samples = ordered[:_MOST_SAMPLES]

    def changes(self, class_names: Sequence[str]) -> Changes | None:
        """Changed samples; None if the output is not one of classes."""
        return Changes(self._total, tuple(class_names), tuple(self._samples)) if self._applies else None

    def _sample(self, row: int, before: int, after: int, place: Place) -> ChangedSample:
        labels = place.batch.labels
        # What is not a class, such as a target or a mask, is not a label here.
        is_class = labels is not None and is_class_index(labels) and labels[row] >= 0
        label = int(labels[row]) if labels is not None and is_class else None
        return ChangedSample(
            index=place.first + row,
            name=place.batch.names[row],
            label=label,
            float_class=before,
            quantized_class=after,
        )
