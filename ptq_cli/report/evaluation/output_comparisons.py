"""The label-free metrics of every output of a quantized model; which apply is settled on the first batch."""

from collections.abc import Sequence

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.evaluation.model_outputs import Place
from ptq_cli.report.evaluation.uncertainty import with_interval
from ptq_cli.report.metrics.base import PairMetric
from ptq_cli.report.metrics.metric_registry import PAIR_METRICS
from ptq_cli.report.metrics.recorder import State
from ptq_cli.report.metrics.worst_channel import WorstChannelSqnr


class Comparisons:
    """Compares a quantized model's outputs with the float model's.

    Args:
        output_names: names of the outputs, in order.
    """

    def __init__(self, output_names: Sequence[str]) -> None:
        self._output_names = output_names
        self._by_output: list[dict[str, PairMetric]] = []

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
        known = {tuple(path.split("/")[:2]) for path in state}
        self._by_output = [
            {name: metric() for name, metric in PAIR_METRICS.items() if (str(index), name) in known}
            for index in range(len(self._output_names) if state else 0)
        ]
        for index, metrics in enumerate(self._by_output):
            for name, metric in metrics.items():
                prefix = f"{index}/{name}/"
                metric.load_state(
                    {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
                )


def _applicable(output: Array, samples: int) -> dict[str, PairMetric]:
    return {name: metric() for name, metric in PAIR_METRICS.items() if metric.accepts(output, samples)}
