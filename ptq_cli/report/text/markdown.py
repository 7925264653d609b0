"""A report as Markdown for a pull-request comment."""

import re
from collections.abc import Iterable

from ptq_cli.evaluation.document.ladder import Ladder
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.report.text.gates import doubt_lines, gate_table
from ptq_cli.report.text.numbers import Table
from ptq_cli.report.text.speed import speed_lines
from ptq_cli.report.text.stream_table import generation_lines, stream_lines, stream_table
from ptq_cli.report.text.summary import (
    class_table,
    comparison_table,
    label_table,
    level_lines,
    no_interval_lines,
    origin_table,
    placement_line,
    placement_table,
    saturation_lines,
    size_table,
    verdict_line,
)
from ptq_cli.report.text.tuning import ladder_table, verdict_of

MAX_LAYERS = 200
"""A comment on GitHub holds 65,536 characters; 200 rows with cells of at most 120 fit for usual names."""
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


def markdown_table(table: Table) -> str:
    """A table whose cells show their text literally."""
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
