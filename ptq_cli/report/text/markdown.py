"""A report as Markdown for a pull-request comment, and its gates as JUnit XML."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree as Xml

from ptq_cli.core.printable import visible
from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.gate_result import GateResult
from ptq_cli.evaluation.document.ladder import Ladder
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import TOLERANCE
from ptq_cli.report.text.stream_table import generation_lines, stream_lines, stream_table
from ptq_cli.report.text.summary import (
    INTERVAL,
    MAX_DECIMALS,
    Row,
    Table,
    class_table,
    comparison_table,
    format_drop,
    format_interval,
    format_value,
    label_table,
    level_lines,
    metric_labels,
    no_interval_lines,
    origin_table,
    placement_line,
    placement_table,
    saturation_lines,
    size_table,
    verdict_line,
)
from ptq_cli.report.text.tables import ladder_table, speed_lines, verdict_of

# Gates as text: a table, and a line for each undecided gate.


SIGNIFICANT_DIGITS = 2
"""Digits of an estimated number of samples."""

Write = Callable[..., str]


def gate_table(report: Report) -> Table:
    """Return each gate: what it limits, the limit, the measured value, its interval, and the result."""
    rows = tuple(row_of(report, gate) for gate in report.gates)
    return Table(("metric", "limit", "measured", INTERVAL, "result"), rows)


def doubt_lines(report: Report) -> list[str]:
    """Return a line for each undecided gate: how many samples would decide it."""
    return [doubt_text(gate, report) for gate in report.gates if gate.verdict == "undecided"]


def doubt_text(gate: GateResult, report: Report) -> str:
    """Say how many samples would decide a gate that those of a report cannot decide, or why none would."""
    seen = report.evaluation.samples
    if gate.kind == "max_latency_ratio":
        return f"undecided: {limited_text(gate)}; a quieter machine would decide it, more samples would not"
    if gate.is_unknown:
        return f"undecided: {limited_text(gate)}; it has no interval: {_why_unknown(gate, report)}"
    is_drift = gate.kind == "max_drift"  # Its interval draws recordings, not samples.
    needed = "more recordings narrow its interval" if is_drift else _needed_text(gate.samples_needed, seen)
    return f"undecided: {limited_text(gate)}; {needed}"


def limited_text(gate: GateResult) -> str:
    """Return what a gate limits, in words."""
    return {
        "max_drop": f"drop of {gate.metric}",
        "max_regression": f"regression of {gate.metric}",
        "min": gate.metric,
        "max_size": "size of the quantized file",
        "max_latency_ratio": "latency relative to float",
        "max_ratio": f"{gate.metric} relative to float",
        "max_drift": f"drift of {gate.metric}",
        "require_portable": "layers that can saturate",
    }[gate.kind]


def limit_text(gate: GateResult, unit: Unit) -> tuple[str, str]:
    """Return the limit and the measured value, with as many digits as they need to differ."""
    if gate.kind == "require_portable":
        return "none", f"{gate.value:.0f}"
    write = _writer(gate, unit)
    limit, value = write(gate.limit), write(gate.value)
    decimals = 2
    # "1.00 points, at most 1.00 points: FAIL" explains nothing; show the digits in which they differ.
    differs = math.isfinite(gate.value) and abs(gate.value - gate.limit) > TOLERANCE
    while differs and limit == value and decimals < MAX_DECIMALS:
        decimals += 1
        limit, value = write(gate.limit, decimals=decimals), write(gate.value, decimals=decimals)
    bound = "at least" if gate.kind == "min" else "at most"
    of = {"max_regression": "the baseline", "max_drift": "the first tenth"}.get(gate.kind, "float")
    relative = f" ({gate.percent:g} % of {of})" if gate.percent is not None else ""
    return f"{bound} {limit}{relative}", value


def result_text(gate: GateResult) -> str:
    """Return a gate's result in words."""
    doubt = ", undecided" if gate.verdict == "undecided" else ""
    return ("pass" if gate.passed else "FAIL") + doubt


def row_of(report: Report, gate: GateResult) -> Row:
    """Return what is limited, the limit, the measured value, its interval, and the result."""
    unit = _unit(report, gate)
    limit, value = limit_text(gate, unit)
    interval = "unknown" if gate.is_unknown else format_interval(gate.interval, unit)
    if gate.kind == "max_ratio" and gate.interval is not None and not gate.is_unknown:
        interval = f"{gate.interval.low:.5g} to {gate.interval.high:.5g}"
    label = metric_labels(report).get(gate.metric, gate.metric)
    return limited_text(replace(gate, metric=label)), limit, value, interval, result_text(gate)


def _why_unknown(gate: GateResult, report: Report) -> str:
    if report.evaluation.samples < 2:
        return "a single sample does not tell how much samples differ"
    if gate.kind == "max_regression":
        return "the two reports do not say which samples are right"
    reasons = (metric.no_interval for metric in report.metrics if metric.name == gate.metric)
    return next(filter(None, reasons), "the metric does not tell what each sample contributes")


def _unit(report: Report, gate: GateResult) -> Unit:
    if gate.kind == "max_ratio":
        return "number"
    return next((metric.unit for metric in report.metrics if metric.name == gate.metric), "number")


def _writer(gate: GateResult, unit: Unit) -> Write:
    if gate.kind == "max_size":
        return _write_size
    if gate.kind == "max_latency_ratio":
        return _write_ratio
    if gate.kind == "max_ratio":
        return _write_fine_ratio
    return partial(format_value if gate.kind == "min" else format_drop, unit=unit)


def _write_ratio(ratio: float, decimals: int = 2) -> str:
    return f"{ratio:.{decimals}f} times"


def _write_fine_ratio(ratio: float, decimals: int | None = None) -> str:
    # A perplexity of 1.0004 times the float model's is not the same.
    return f"{ratio:.5g} times" if decimals is None else f"{ratio:.{decimals}f} times"


def _write_size(size: float, decimals: int | None = None) -> str:
    return format_bytes(int(size)) if decimals is None else f"{int(size):,} bytes"


def _needed_text(needed: int | None, seen: int) -> str:
    """Return how many samples would decide a gate, in words.

    Example:
        >>> _needed_text(9123, 2000), _needed_text(None, 2000)
        ('about 9,100 samples would decide it, this run had 2,000', 'more samples would not decide it')
    """
    if needed is None:
        return "more samples would not decide it"
    rounded = round(needed, SIGNIFICANT_DIGITS - len(str(needed))) if needed > 99 else needed
    return f"about {rounded:,} samples would decide it, this run had {seen:,}"


MAX_LAYERS = 200
"""A comment on GitHub holds 65,536 characters; 200 rows with cells of at most 120 fit for usual names."""

MAX_CELL = 120
MAX_PARAGRAPH = 1000

# Letters and digits of any script, and characters that have no meaning in Markdown inside a table cell.
_PLAIN = re.compile(r"[\w ./,;%+()=-]")
_OUTER_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_WWW = re.compile(r"www\.", re.IGNORECASE)


def report_to_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown: verdict, metrics, size, placement, origin.

    Edge case:
        Names from the model never act as markup: see ``escape``. At most 200 layers are listed, those that
        stay float first.
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
    """Return the result of ``ptq gate``: only the verdict and the gates."""
    return f"### ptq gate\n\n**{verdict_line(report)}**\n\n{_gates(report)}\n"


def _gates(report: Report) -> str:
    """Return the table of the gates, and the undecided ones as a list."""
    parts = [markdown_table(gate_table(report))]
    if doubts := doubt_lines(report):
        parts.append("\n".join(f"- {escape(line)}" for line in doubts))
    return "\n\n".join(parts)


def escape(text: str, most: int = MAX_CELL) -> str:
    r"""Return Markdown that shows ``text`` literally: it makes no markup, HTML, link or mention.

    Every character that has a meaning in Markdown or HTML becomes a numeric reference, which CommonMark never
    takes for structure. ``@`` and ``#`` also get a zero-width space, because GitHub looks for mentions and
    issues in the rendered text.

    Edge case:
        Line breaks and tabs become spaces; control and direction-changing characters become U+FFFD; text
        longer than ``most`` characters is cut, which is 120 unless another number is given.

    Source:
        CommonMark 0.31.2, section 2.5 (entity and numeric character references).

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


def markdown_table(table: Table) -> str:
    """Return a table whose cells show their text literally."""
    rule = tuple("---" for _ in table.header)
    return "\n".join([_row(table.header), _row(rule), *(_row(map(escape, row)) for row in table.rows)])


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


# A report as JUnit XML, which CI servers show as tests: one test case per gate.


_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""XML 1.0 section 2.2 allows no other characters, not even as references."""


def report_to_junit(report: Report) -> str:
    """Return the gates as one test suite: a failed gate is a failure, an undecided one says so in its output.

    Edge case:
        Without a limit the suite is empty. The document contains no time: the same report gives the same
        bytes. Characters that XML cannot hold become U+FFFD.
    """
    failures = str(sum(not gate.passed for gate in report.gates))
    counts = {"tests": str(len(report.gates)), "failures": failures, "errors": "0"}
    suites = Xml.Element("testsuites", {"name": "ptq", **counts})
    name = _writable(f"ptq gate of {report.model.source}")
    suite = Xml.SubElement(suites, "testsuite", {"name": name, **counts, "skipped": "0"})
    for gate in report.gates:
        suite.append(_case(report, gate))
    Xml.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{Xml.tostring(suites, encoding="unicode")}\n'


def _case(report: Report, gate: GateResult) -> Xml.Element:
    _, limit, value, interval, _ = row_of(report, gate)
    measured = f"measured: {value}" + (f", 95 % interval {interval}" if interval else "")
    case = Xml.Element(
        "testcase", {"classname": "ptq.gate", "name": _writable(f"{limited_text(gate)} {limit}"), "time": "0"}
    )
    is_doubtful = gate.verdict == "undecided"
    doubt = doubt_text(gate, report) if is_doubtful else ""
    if not gate.passed:
        kind = "undecided" if is_doubtful else "failed"
        Xml.SubElement(case, "failure", {"type": kind, "message": _writable(measured)}).text = _writable(
            doubt
        )
    Xml.SubElement(case, "system-out").text = _writable("\n".join(filter(None, [measured, doubt])))
    return case


def _writable(text: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(text))
