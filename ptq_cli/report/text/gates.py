"""Gates as a table, as lines of doubt, and as JUnit XML."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree as Xml

from ptq_cli.core.words import format_bytes, visible
from ptq_cli.evaluation.document.gate_result import GateResult
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import TOLERANCE
from ptq_cli.report.text.numbers import (
    INTERVAL,
    MAX_DECIMALS,
    Row,
    Table,
    format_drop,
    format_interval,
    format_value,
)
from ptq_cli.report.text.summary import metric_labels

SIGNIFICANT_DIGITS = 2  # digits of an estimated number of samples
Write = Callable[..., str]
# XML 1.0 section 2.2 allows no other characters, not even as references.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gate_table(report: Report) -> Table:
    """Each gate: what it limits, the limit, the measured value, its interval, and the result."""
    rows = tuple(row_of(report, gate) for gate in report.gates)
    return Table(("metric", "limit", "measured", INTERVAL, "result"), rows)


def doubt_lines(report: Report) -> list[str]:
    """A line for each undecided gate: how many samples would decide it."""
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
    """Quantity that a gate limits, in words."""
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
    """Limit and the measured value, with as many digits as they need to differ."""
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
    """A gate's result in words."""
    doubt = ", undecided" if gate.verdict == "undecided" else ""
    return ("pass" if gate.passed else "FAIL") + doubt


def row_of(report: Report, gate: GateResult) -> Row:
    """Cells of a gate: what it limits, the limit, the measured value, its interval, and the result."""
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
        return lambda size, decimals=0: f"{int(size):,} bytes" if decimals else format_bytes(int(size))
    if gate.kind == "max_latency_ratio":
        return lambda ratio, decimals=2: f"{ratio:.{decimals}f} times"
    if gate.kind == "max_ratio":  # A perplexity of 1.0004 times the float model's is not the same.
        return lambda ratio, decimals=0: f"{ratio:.{decimals}f} times" if decimals else f"{ratio:.5g} times"
    return partial(format_value if gate.kind == "min" else format_drop, unit=unit)


def _needed_text(needed: int | None, seen: int) -> str:
    """Number of samples that would decide a gate, in words.

    Example:
        >>> _needed_text(9123, 2000), _needed_text(None, 2000)
        ('about 9,100 samples would decide it, this run had 2,000', 'more samples would not decide it')
    """
    if needed is None:
        return "more samples would not decide it"
    rounded = round(needed, SIGNIFICANT_DIGITS - len(str(needed))) if needed > 99 else needed
    return f"about {rounded:,} samples would decide it, this run had {seen:,}"


def report_to_junit(report: Report) -> str:
    """Gates as one test suite: a failed gate is a failure, an undecided one says so in its output.

    Edge case: Without a limit the suite is empty. The document contains no time: the same report gives the
    same bytes. Characters that XML cannot hold become U+FFFD.
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
