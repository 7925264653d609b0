"""The metrics that judge each model, made sure to exist before any model runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ptq_cli.core.errors import MetricError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.report.metrics.named.named_code import Make, metric_maker
from ptq_cli.report.metrics.spec import MetricSpec


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
    """Return the metrics with what makes them, once it is known that they can be made.

    Args:
        specs: which ones.
        outputs: names of the models' outputs.
        classes: sizes of the outputs' second axes, if they are known.

    Raises:
        MetricError: an output does not exist, or a metric refuses its arguments.
        EntryPointError: code that the user named cannot be imported.

    Example:
        >>> judged_metrics([MetricSpec(name="top1", metric="top1")], ["scores"])[0].output_name
        'scores'
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
