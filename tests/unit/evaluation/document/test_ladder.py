"""The ladder of a tuning: its file, its table and its part of the report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ptq_cli.core.documents import parse_document, to_json
from ptq_cli.core.errors import ReportError
from ptq_cli.evaluation.document.ladder import LADDER_INTERRUPTED, BudgetCheck, Ladder, LadderStep
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.report.text.markdown import report_to_markdown
from ptq_cli.report.text.summary import ladder_table, verdict_of
from tests.measured import validator


def check(value: float, bound: float) -> BudgetCheck:
    return BudgetCheck(metric="top1", unit="share", kind="max_drop", limit=0.01, value=value, bound=bound)


def step(name: str, sqnr: float, kept: bool = True, **changes: object) -> LadderStep:
    plain = LadderStep(name=name, rungs=(), in_float=(), sqnr_db=sqnr, kept=kept, checks=(check(0.02, 0.03),))
    return replace(plain, **changes)


LADDER = Ladder(
    model_sha256="a" * 64,
    samples=300,
    set_aside=400,
    steps=(
        step("default", 20.0),
        step("ranges", 19.0, kept=False, rungs=("ranges",)),
        step("round", 31.0, rungs=("round",), proof=(check(0.001, 0.008),), level=0.025),
    ),
    chosen=2,
    met=True,
)


def test_a_ladder_is_read_as_it_was_written() -> None:
    assert parse_document(Ladder, to_json(LADDER).encode()) == LADDER


def test_a_choice_that_is_no_step_is_refused() -> None:
    body = {**json.loads(to_json(LADDER)), "chosen": 3}
    with pytest.raises(ReportError) as caught:
        parse_document(Ladder, json.dumps(body).encode())
    assert caught.value.message == "'chosen' names no step"


def test_the_table_has_a_row_for_each_candidate() -> None:
    table = ladder_table(LADDER)
    assert table.header == ("rung", "SQNR", "drop of top1", "at most", "result")
    assert table.rows == (
        ("default", "20.00 dB", "2.00 points", "", "better"),
        ("ranges", "19.00 dB", "2.00 points", "", "no better"),
        ("round", "31.00 dB", "0.10 points", "0.80 points", "budget kept"),
    )
    missed = replace(LADDER, met=False, chosen=0, steps=LADDER.steps[:2], stopped="no rung is left to try")
    assert ladder_table(missed).rows[0][-1] == "better, chosen"
    assert verdict_of(missed) == (
        "BUDGET MISSED: default is the best of 2 candidates; no rung is left to try"
    )
    cut = replace(LADDER, met=False, chosen=0, steps=LADDER.steps[:1], stopped=LADDER_INTERRUPTED)
    assert verdict_of(cut) == "the budget is not kept yet: default is the best of 1 candidate so far"


def test_the_report_has_it(report: Report) -> None:
    tuned = replace(report, ladder=LADDER)
    validator("report").validate(json.loads(to_json(tuned)))
    assert parse_document(Report, to_json(tuned).encode()).ladder == LADDER
    text = report_to_markdown(tuned)
    assert "<summary>Tuning</summary>" in text
    assert "| round | 31.00 dB | 0.10 points | 0.80 points | budget kept |" in text
    assert "Tuning" not in report_to_markdown(report)


def test_the_ladder_of_another_model_is_not_shown(tmp_path: Path) -> None:
    from ptq_cli.models.files.stored import StoredModel
    from ptq_cli.pipeline.evaluation.reports import tuned_ladder
    from ptq_cli.setup.run_directory import RunDirectory

    run, model = RunDirectory(tmp_path), StoredModel(content=b"model")
    assert tuned_ladder(run, model) is None
    run.tuning.write_text(to_json(LADDER))
    assert tuned_ladder(run, model) is None
    own = replace(LADDER, model_sha256=model.sha256)
    run.tuning.write_text(to_json(own))
    assert tuned_ladder(run, model) == own
