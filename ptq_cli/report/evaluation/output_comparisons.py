"""The label-free metrics of every output of a quantized model; which apply is settled on the first batch."""

from collections.abc import Iterator, Sequence

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.evaluation.model_outputs import Place
from ptq_cli.report.evaluation.uncertainty import with_interval
from ptq_cli.report.metrics.base import PairMetric
from ptq_cli.report.metrics.metric_registry import PAIR_METRICS
from ptq_cli.report.metrics.recorder import State, below
from ptq_cli.report.metrics.values.worst_channel import WorstChannelSqnr


class Comparisons:
    """Compares a quantized model's outputs with the float model's.

    Args:
        output_names: names of the outputs, in order.
    """

    def __init__(self, output_names: Sequence[str]) -> None:
        self._output_names = output_names
        self._by_output: list[dict[str, PairMetric]] = []
        self._first = 0

    def update(
        self, float_outputs: Sequence[Array], quantized_outputs: Sequence[Array], place: Place
    ) -> None:
        """Count one batch.

        Raises:
            MetricError: an output has another layout than in the first batch.
        """
        samples = place.batch.size
        if not self._by_output:
            self._by_output = [_applicable(output, samples) for output in float_outputs]
            for _, metric in self._by_prefix():
                metric.start_at(self._first)
        for name, metrics, expected, found in zip(
            self._output_names, self._by_output, float_outputs, quantized_outputs, strict=True
        ):
            for metric in metrics.values():
                if not metric.accepts(expected, samples):
                    raise MetricError(
                        f"output '{name}' has a different shape at {place.whole()} than in the first batch",
                        hint="in every batch, an output must have the same rank, with the samples on axis 0",
                    )
                metric.update(expected, found)

    def measurements(self, samples: int) -> list[Measurement]:
        """Return what was measured, output by output: under the plain name for the first."""
        return [
            with_interval(
                Measurement(
                    name=name if index == 0 else f"{name}[{self._output_names[index]}]",
                    unit=metric.unit,
                    needs_labels=False,
                    higher_is_better=metric.higher_is_better,
                    quantized_value=metric.compute(),
                    output=self._output_names[index],
                    channel=metric.channel if isinstance(metric, WorstChannelSqnr) else None,
                ),
                metric.resampling(),
                samples,
            )
            for index, metrics in enumerate(self._by_output)
            for name, metric in metrics.items()
        ]

    def state(self) -> State:
        """Return what a checkpoint holds."""
        return {
            f"{index}/{name}/{key}": array
            for index, metrics in enumerate(self._by_output)
            for name, metric in metrics.items()
            for key, array in metric.state().items()
        }

    def load_state(self, state: State) -> None:
        """Go on from what a checkpoint held."""
        self._by_output = self._known(state)
        for prefix, metric in self._by_prefix():
            metric.load_state(below(state, prefix))

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set."""
        self._first = sample

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was compared in all parts of a set, in their order.

        Raises:
            MetricError: an output has another layout in one part than in another.
        """
        self._by_output = self._known(states[0])
        kinds = {frozenset(tuple(path.split("/")[:2]) for path in state) for state in states}
        try:
            if len(kinds) != 1:
                raise ValueError("not all have the same metrics")  # noqa: TRY301 - as what the metrics raise
            for prefix, metric in self._by_prefix():
                metric.join([below(state, prefix) for state in states])
        except ValueError as error:
            raise MetricError(
                "an output has not the same layout in every batch, so the parts do not fit each other: "
                f"{error}",
                hint="evaluate all samples in one process, or with --batch-size 1",
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


def _applicable(output: Array, samples: int) -> dict[str, PairMetric]:
    return {name: metric() for name, metric in PAIR_METRICS.items() if metric.accepts(output, samples)}
