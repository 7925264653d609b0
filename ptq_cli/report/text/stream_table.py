"""Errors over the steps of recordings, and how prompts are continued, as tables and lines of text."""

from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.report.text.numbers import INTERVAL, Table, format_drop, format_interval, format_value
from ptq_cli.report.text.summary import metric_labels

SHOWN_TOKENS = 16  # tokens shown of a continuation without a tokenizer


def stream_table(report: Report) -> Table:
    """Metrics on both kinds of states, and in the first and the last tenth of the steps."""
    header = ("over the steps", "own", "float's", "begin", "end", "loss", INTERVAL)
    if report.stream is None:
        return Table(header, ())
    own, forced = ({item.name: item for item in found} for found in (report.metrics, report.stream.forced))
    labels, rows = metric_labels(report), []
    for item in report.stream.drifts:
        values = [format_value(found[item.metric].quantized_value, item.unit) for found in (own, forced)]
        write = format_value if own[item.metric].float_value is None else format_drop
        tenths = [write(value, item.unit) for value in (item.first, item.last)]
        loss, interval = format_drop(item.loss, item.unit), format_interval(item.interval, item.unit)
        rows.append((labels[item.metric], *values, *tenths, loss, interval))
    return Table(header, tuple(rows))


def stream_lines(report: Report) -> list[str]:
    """A line about the recordings, and the step at which a model on its own states is worst."""
    found = report.stream
    if found is None or not found.curve:
        return []
    name = found.drifts[0].metric if found.drifts else ""
    values = {item.step: item.free.get(name) for item in found.curve}
    worst = values[found.worst_step]
    at = f", {format_value(worst, 'decibel')}" if worst is not None and name == "sqnr_db" else ""
    recordings = f"{found.recordings:,} recording{'' if found.recordings == 1 else 's'}"
    return [
        f"{recordings} of up to {found.longest:,} steps: on its own states, on the float model's, and on its "
        "own in the first and the last tenth",
        f"worst at step {found.worst_step}{at}",
    ]


def generation_lines(report: Report) -> list[str]:
    """A line about how far prompts are continued alike, and the first continuations that differ.

    Example:
        >>> from types import SimpleNamespace
        >>> from ptq_cli.evaluation.document.generation import Example, Generation
        >>> one = Example(prompt="a.npz[0]", of_float=(7, 1), quantized=(7, 2))
        >>> found = Generation(
        ...     prompts=4,
        ...     tokens=2,
        ...     unchanged=3,
        ...     median_equal=2.0,
        ...     first_differences=(1, None, None, None),
        ...     examples=(one,),
        ... )
        >>> for line in generation_lines(SimpleNamespace(generation=found)):
        ...     print(line)
        4 prompts continued by 2 tokens: 3 alike, the first 2 tokens equal in the median
        a.npz[0]: float 7 1 | quantized 7 2
    """
    found = report.generation
    if found is None:
        return []
    prompts = f"{found.prompts:,} prompt{'' if found.prompts == 1 else 's'}"
    tokens = f"{found.tokens:,} token{'' if found.tokens == 1 else 's'}"
    lines = [
        f"{prompts} continued by {tokens}: {found.unchanged:,} alike, the first {found.median_equal:g} "
        "tokens equal in the median"
    ]
    for item in found.examples if found.unchanged < found.prompts else ():
        one, other = (
            f"{text!r}" if text is not None else " ".join(map(str, tokens[:SHOWN_TOKENS]))
            for text, tokens in ((item.float_text, item.of_float), (item.quantized_text, item.quantized))
        )
        lines.append(f"{item.prompt}: float {one} | quantized {other}")
    return lines
