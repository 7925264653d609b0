"""The comment reads well, and no name from a model can do anything in it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.evaluation.document.report_document import EvaluationSummary, LayerEntry, Report
from ptq_cli.report.text.markdown import escape, report_to_markdown
from tests.each_case import each_case
from tests.measured import measurement

GOLDEN = Path(__file__).parents[3] / "golden" / "report.md"

HOSTILE = [
    "<script>alert(1)</script>",
    "a|b",
    "`code`",
    "[link](javascript:alert(1))",
    "![image](https://example.com/pixel.png)",
    "two\n\n# headings",
    "</details><b>out",
    "*bold* _it_ ~~gone~~",
    "&lt;b&gt;",
    "back\\|slash",
    "https://example.com",
    "@everyone #1",
]


def test_the_comment_is_as_it_was(report: Report) -> None:
    assert report_to_markdown(report) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_changes_no_structure(report: Report, name: str) -> None:
    def structure(text: str) -> list[str]:
        return re.findall(r"[<>|`*\[\]\\~!\n@]", text)

    def named(name: str) -> Report:
        return replace(
            report,
            layers=(LayerEntry(name, name, False, name),),
            metrics=(*report.metrics, measurement(f"cosine[{name}]", 1.0)),
            evaluation=EvaluationSummary(name, 1, name),
            versions={name: name},
            target=name,
        )

    assert structure(report_to_markdown(named(name))) == structure(report_to_markdown(named("plain")))


@each_case(
    "text, shown",
    [
        ("<script>alert(1)</script>", "&#60;script&#62;alert(1)&#60;/script&#62;"),
        ("a|b", "a&#124;b"),
        ("/layer_1/conv.weight", "/layer_1/conv.weight"),
        ("_outer_ a__b", "&#95;outer&#95; a&#95;&#95;b"),
        ("www.example.com", "www&#46;example.com"),
        ("a\nb\tc", "a b c"),
        ("@user", "&#64;\u200buser"),
        ("\x1b[31m", "\ufffd&#91;31m"),
        ("right\u202eleft", "right\ufffdleft"),
        ("Schicht_größe", "Schicht_größe"),
        ("x" * 121, "x" * 119 + "…"),
    ],
    ids=[
        "html",
        "pipe",
        "usual-name",
        "underscores",
        "www",
        "line",
        "mention",
        "escape",
        "bidi",
        "accents",
        "long",
    ],
)
def test_escape(text: str, shown: str) -> None:
    assert escape(text) == shown


@given(st.text())
def test_nothing_that_markdown_reads_is_left(text: str) -> None:
    # Ampersand and hash are left only inside a reference, and there they mean one character.
    left = re.sub(r"&#[0-9]+;", "", escape(text))
    assert not re.search(r"[<>&|`*\[\]\\~!#@:\n\r\t\"'$^{}]", left)
    assert left.isprintable() or "\u200b" in left


def test_a_report_without_gates_or_layers_has_no_empty_tables(report: Report) -> None:
    text = report_to_markdown(replace(report, gates=(), layers=(), metrics=()))
    assert text.startswith("### ptq report\n\n**no gate: no limit was set**\n\n| model |")
    assert "0 layers run on integers, 0 stay float." in text
    assert "Layers" not in text


def test_many_layers_are_cut_and_counted(report: Report) -> None:
    layers = tuple(
        LayerEntry(f"/block{index}/" + "x" * 500, "Conv", index % 2 == 0, "r" * 500) for index in range(1000)
    )
    text = report_to_markdown(replace(report, layers=layers))
    assert "800 more in report.json." in text
    assert len(text) < 65_536
