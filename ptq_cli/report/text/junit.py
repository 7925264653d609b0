"""A report as JUnit XML, which CI servers show as tests: one test case per gate."""

import re
from xml.etree import ElementTree as Xml

from ptq_cli.report.document.gate_result import GateResult
from ptq_cli.report.document.report_document import Report
from ptq_cli.report.text.gate_summary import doubt_text, limited_text, row_of

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
    return _NOT_XML.sub("\ufffd", text)
