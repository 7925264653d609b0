"""The answers of devices to the same cases as text: a row for each device, and the limits that are missed."""

from ptq_cli.evaluation.cases.device_answers import DeviceAnswer, DeviceAnswers
from ptq_cli.report.text.markdown import MAX_PARAGRAPH, escape, markdown_table
from ptq_cli.report.text.summary import Table
from ptq_cli.report.text.tables import format_decibels, format_latency, format_share

REFERENCES = {"float": "the float model", "written": "the file as it is written"}
"""What SQNR is measured against, by what the manifest calls it."""
COLUMNS = ("device", "runtime", "exact kernels", "first that differs", "SQNR", "top-1", "time")


def device_table(result: DeviceAnswers) -> Table:
    """Return what each device gave."""
    return Table(COLUMNS, tuple(_row(item) for item in result.devices))


def _row(item: DeviceAnswer) -> tuple[str, ...]:
    exact = sum(kernel.exact for kernel in item.kernels)
    return (
        item.device,
        f"{item.runtime}, {item.provider}",
        format_share(exact, len(item.kernels)) if item.kernels else "",
        item.first_difference or "",
        "" if item.sqnr_db is None else format_decibels(item.sqnr_db),
        "" if item.top1_agreement is None else f"{item.top1_agreement:.2%}",
        "" if item.seconds is None else format_latency(item.seconds),
    )


def reference_line(result: DeviceAnswers) -> str:
    """Say what the outputs are compared with, and what is expected of them; empty if none were."""
    expected = min((item.expected_sqnr_db for each in result.devices for item in each.outputs), default=None)
    if expected is None:
        return ""
    return (
        f"SQNR and top-1 agreement are against {REFERENCES[result.manifest.reference]}; "
        f"{format_decibels(expected)} is expected"
    )


def missed_lines(result: DeviceAnswers) -> list[str]:
    """Return a line for each limit that a device misses."""
    return [
        f"FAIL {gate.device}: {gate.metric} is {'nothing' if gate.value is None else f'{gate.value:.4g}'}, "
        f"required: at least {gate.limit:g}"
        for gate in result.gates
        if not gate.passed
    ]


def answers_to_markdown(result: DeviceAnswers) -> str:
    """Return a row for each device, and the limits that are missed, for the summary of a CI job."""
    parts = ["### ptq verify", f"**{result.verdict}**", markdown_table(device_table(result))]
    parts += [escape(line, MAX_PARAGRAPH) for line in (reference_line(result), *missed_lines(result)) if line]
    return "\n\n".join(parts) + "\n"
