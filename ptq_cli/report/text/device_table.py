"""The answers of devices to the same cases as text: a row for each device, and the limits that are missed."""

from ptq_cli.evaluation.document.device_document import DeviceAnswer, DeviceAnswers, DeviceKernel
from ptq_cli.report.text.markdown import MAX_PARAGRAPH, escape, markdown_table
from ptq_cli.report.text.numbers import Table, format_decibels, format_latency, format_share

REFERENCES = {"float": "the float model", "written": "the file as it is written"}
"""What SQNR is measured against, by what the manifest calls it."""
COLUMNS = (
    "device",
    "runtime",
    "exact kernels",
    "steps off",
    "first that differs",
    "SQNR",
    "top-1",
    "time per run",
)
NUMBERS = (2, 3, 5, 6, 7)  # columns of numbers
MOST_KERNELS = 20
KERNEL_COLUMNS = ("kernel", "type", "differ", "steps")


def device_table(result: DeviceAnswers) -> Table:
    """A row for each device."""
    return Table(COLUMNS, tuple(_device_row(item) for item in result.devices))


def _device_row(item: DeviceAnswer) -> tuple[str, ...]:
    exact = sum(kernel.exact for kernel in item.kernels)
    return (
        item.device,
        f"{item.runtime}, {item.provider.removesuffix('ExecutionProvider')}",
        format_share(exact, len(item.kernels)) if item.kernels else "",
        "" if item.steps is None else f"{item.steps:.3g}",
        item.first_difference or "",
        "" if item.sqnr_db is None else format_decibels(item.sqnr_db),
        share_text(item.top1_agreement),
        time_text(item),
    )


def share_text(share: float | None) -> str:
    """Write a share of rows in percent; nothing if there is none."""
    return "" if share is None else f"{100 * share:.2f} %"


def time_text(item: DeviceAnswer) -> str:
    """Time of a run; empty if none was timed."""
    if item.seconds is None:
        return ""
    return f"{format_latency(item.seconds)}{' emulated' if item.emulated else ''}"


def kernel_table(item: DeviceAnswer) -> tuple[Table, int]:
    """First kernels of a device that are not exact, and how many are not."""
    wrong = [kernel for kernel in item.kernels if not kernel.exact]
    return Table(KERNEL_COLUMNS, tuple(map(_kernel_row, wrong[:MOST_KERNELS]))), len(wrong)


def _kernel_row(kernel: DeviceKernel) -> tuple[str, ...]:
    if kernel.fault:
        return kernel.node, kernel.op, kernel.fault, ""
    return kernel.node, kernel.op, format_share(kernel.differing, kernel.values), f"{kernel.steps:.3g}"


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
    """A line for each device that did not run the model, and for each limit that one misses."""
    failed = [f"{item.device} did not run the model: {item.fault}" for item in result.devices if item.fault]
    return failed + [
        f"FAIL {gate.device}: {gate.metric} "
        f"{'was not measured' if gate.value is None else f'is {gate.value:.4g}'}, "
        f"required: at least {gate.limit:g}"
        for gate in result.gates
        if not gate.passed
    ]


def answers_to_markdown(result: DeviceAnswers) -> str:
    """A row for each device, and the limits that are missed, for the summary of a CI job."""
    return "\n\n".join(["### ptq verify", f"**{result.verdict}**", *_parts(result)]) + "\n"


def devices_to_markdown(result: DeviceAnswers) -> str:
    """Same as a section of ``report.md``."""
    return "\n\n".join(["### On devices", *_parts(result)]) + "\n"


def _parts(result: DeviceAnswers) -> list[str]:
    lines = filter(None, (reference_line(result), *missed_lines(result)))
    return [markdown_table(device_table(result)), *(escape(line, MAX_PARAGRAPH) for line in lines)]
