"""A report as Markdown for a pull-request comment, and the answers of devices as a table."""

import re
from collections.abc import Iterable

from ptq_cli.evaluation.document.device_document import DeviceAnswer, DeviceAnswers, DeviceKernel
from ptq_cli.evaluation.document.ladder import Ladder
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.report.text.gates import doubt_lines, gate_table
from ptq_cli.report.text.numbers import Table, format_decibels, format_latency, format_share
from ptq_cli.report.text.speed import speed_lines
from ptq_cli.report.text.summary import (
    class_table,
    comparison_table,
    generation_lines,
    label_table,
    ladder_table,
    level_lines,
    no_interval_lines,
    origin_table,
    placement_line,
    placement_table,
    saturation_lines,
    size_table,
    stream_lines,
    stream_table,
    verdict_line,
    verdict_of,
)

# A comment on GitHub holds 65,536 characters; 200 rows with cells of at most 120 fit for usual names.
MAX_LAYERS = 200
MAX_CELL = 120
MAX_PARAGRAPH = 1000
# Letters and digits of any script, and characters that have no meaning in Markdown inside a table cell.
_PLAIN = re.compile(r"[\w ./,;%+()=-]")
_OUTER_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_WWW = re.compile(r"www\.", re.IGNORECASE)


def report_to_markdown(report: Report) -> str:
    """Report as GitHub-flavoured Markdown: verdict, metrics, size, placement, origin.

    Edge case: Names from the model never act as markup: see ``escape``. At most 200 layers are listed, those
    that stay float first.
    """
    parts = ["### ptq report", f"**{verdict_line(report)}**"]
    if report.gates:
        parts.append(_gates(report))
    for table in (label_table(report), comparison_table(report), stream_table(report), size_table(report)):
        if table.rows:
            parts.append(markdown_table(table))
    parts += [escape(line) for line in (*no_interval_lines(report), *stream_lines(report))]
    parts += [escape(line, MAX_PARAGRAPH) for line in generation_lines(report)]
    parts += [escape(line, MAX_PARAGRAPH) for line in level_lines(report)]
    for warning in report.all_warnings:
        parts.append(f"**Warning:** {escape(warning.message, MAX_PARAGRAPH)}")
        parts += [f"- {escape(hint, MAX_PARAGRAPH)}" for hint in warning.hints]
    if report.ladder is not None:
        parts.append(
            _details("Tuning", f"{markdown_table(ladder_table(report.ladder))}\n\n{_tuned(report.ladder)}")
        )
    if (classes := class_table(report)).rows:
        parts.append(_details("Classes", markdown_table(classes)))
    parts.append(f"{placement_line(report)}.")
    parts += [f"{escape(line, MAX_PARAGRAPH)}." for line in saturation_lines(report)]
    parts += [escape(line, MAX_PARAGRAPH) for line in speed_lines(report.times)]
    if report.layers:
        parts.append(_details("Layers", _placement(report)))
    parts.append(_details("How this report was made", markdown_table(origin_table(report))))
    return "\n\n".join(parts) + "\n"


def gate_to_markdown(report: Report) -> str:
    """Result of ``ptq gate``: only the verdict and the gates."""
    return f"### ptq gate\n\n**{verdict_line(report)}**\n\n{_gates(report)}\n"


def _gates(report: Report) -> str:
    """Table of the gates, and the undecided ones as a list."""
    parts = [markdown_table(gate_table(report))]
    if doubts := doubt_lines(report):
        parts.append("\n".join(f"- {escape(line)}" for line in doubts))
    return "\n\n".join(parts)


def escape(text: str, most: int = MAX_CELL) -> str:
    r"""Markdown that shows ``text`` literally: it makes no markup, HTML, link or mention.

    Every character that has a meaning in Markdown or HTML becomes a numeric reference, which CommonMark never
    takes for structure. ``@`` and ``#`` also get a zero-width space, because GitHub looks for mentions and
    issues in the rendered text.

    Edge case: Line breaks and tabs become spaces; control and direction-changing characters become U+FFFD;
    text longer than ``most`` characters is cut, which is 120 unless another number is given.
    Source: CommonMark 0.31.2, section 2.5 (entity and numeric character references).

    Example:
        >>> escape("a|b"), escape("<script>")
        ('a&#124;b', '&#60;script&#62;')
        >>> escape("/conv_1/Conv"), escape("two\nlines")
        ('/conv_1/Conv', 'two lines')
    """
    line = " ".join(text.split())
    if len(line) > most:
        line = line[: most - 1] + "…"
    escaped = "".join(_escape_letter(letter) for letter in line)
    escaped = _OUTER_UNDERSCORE.sub("&#95;", escaped)
    return _WWW.sub(lambda match: f"{match[0][:3]}&#46;", escaped)


def _escape_letter(letter: str) -> str:
    if not letter.isprintable():
        return "\ufffd"
    if _PLAIN.match(letter) or not letter.isascii():
        return letter
    return f"&#{ord(letter)};" + ("\u200b" if letter in "@#" else "")


def markdown_table(table: Table, most: int = MAX_CELL) -> str:
    """A table whose cells show their text literally, cut as ``escape`` says."""
    rule, rows = (
        tuple("---" for _ in table.header),
        ([escape(cell, most) for cell in row] for row in table.rows),
    )
    return "\n".join([_row(table.header), _row(rule), *map(_row, rows)])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _tuned(ladder: Ladder) -> str:
    lines = [*ladder.advice, *filter(None, [ladder.untried])]
    return "\n".join([f"{escape(verdict_of(ladder))}.", *(f"- {escape(line)}" for line in lines)])


def _placement(report: Report) -> str:
    table = placement_table(report)
    text = markdown_table(Table(table.header, table.rows[:MAX_LAYERS]))
    left_out = len(table.rows) - MAX_LAYERS
    return f"{text}\n\n{left_out} more in report.json." if left_out > 0 else text


def _details(title: str, body: str) -> str:
    # The empty lines around the body make GitHub read it as Markdown inside the HTML block.
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"


# What SQNR is measured against, by what the manifest calls it.
REFERENCES = {"float": "the float model", "written": "the file as it is written"}
_COLUMNS = (
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
    return Table(_COLUMNS, tuple(_device_row(item) for item in result.devices))


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
