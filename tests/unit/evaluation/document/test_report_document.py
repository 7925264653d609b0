"""A report survives its file and fits its schema, and no other file is taken for one.

``details.json`` keeps what it was given, and refuses what it was not.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.core.documents import parse_document, read_document, to_json
from ptq_cli.core.errors import ReportError
from ptq_cli.evaluation.bootstrap import count_flips
from ptq_cli.evaluation.document.gate_result import LatencyCause, OwnFileLatency, ReportWarning, Times
from ptq_cli.evaluation.document.measurement import flips_between, hits_to_text, require_hits
from ptq_cli.evaluation.document.report_document import ChangedSample, Changes, Details, LayerEntry, Report
from ptq_cli.evaluation.interval import Interval
from tests.each_case import each_case, table
from tests.measured import changed_json, gate_result, latency_of, measurement, validator

GOLDEN = Path(__file__).parents[3] / "golden" / "report.json"
SCHEMA = validator("report")
ODD = (math.inf, -math.inf, math.nan)


def test_the_json_is_as_it_was(report: Report) -> None:
    assert to_json(report) == GOLDEN.read_text(encoding="utf-8")


def test_a_report_survives_its_file(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(to_json(report), encoding="utf-8")
    assert read_document(Report, path) == report


def test_identical_outputs_have_an_infinite_ratio_in_json(report: Report) -> None:
    infinite = replace(report, metrics=(measurement("sqnr_db", math.inf),), gates=())
    text = to_json(infinite)
    assert '"quantized_value": "inf"' in text
    assert parse_document(Report, text.encode()) == infinite


def test_the_file_is_ascii_whatever_the_names(report: Report) -> None:
    layers = (LayerEntry("\x1b[2J\x9b\u202eevil\u00e9", "Conv", True, ""),)
    text = to_json(replace(report, layers=layers))
    assert text.isascii()
    assert "\x1b" not in text
    assert parse_document(Report, text.encode()).layers == layers


def test_a_drop_is_float_minus_quantized_and_a_comparison_has_none() -> None:
    assert (measurement("top1", 0.5, 0.75).drop, measurement("top1", 0.75, 0.5).drop) == (0.25, -0.25)
    assert measurement("sqnr_db", 30.0).drop is None


def test_counts_and_verdict_follow_from_the_rest(report: Report) -> None:
    assert (report.quantized_layers, report.float_layers, report.verdict) == (2, 1, "pass")
    missed = replace(report, gates=(gate_result("top1", "max_drop", 0.001, 0.004),))
    assert (missed.verdict, replace(report, gates=()).verdict) == ("fail", "no gate")
    assert (report.model.size_ratio, json.loads(to_json(missed))["verdict"]) == (4.0, "fail")


def refusal(tmp_path: Path, content: bytes) -> ReportError:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(ReportError) as caught:
        read_document(Report, path)
    assert caught.value.message.startswith(f"report '{path}': ")
    return caught.value


@each_case(
    "content, message",
    [
        (b"", "it is not valid JSON: Expecting value"),
        (b'{"format": "ptq.re', "it is not valid JSON: Unterminated string"),
        (b"\xff\xfe\x00", "it is not valid JSON: 'utf-8' codec can't decode"),
        (b'{"format": NaN}', "it is not valid JSON: NaN is not JSON"),
        (b"[" * 100_000, "it is not valid JSON: maximum recursion depth exceeded"),
        (b"9" * 10_000, "it is not valid JSON: Exceeds the limit"),
        (b"[]", 'it is JSON, but its "format" is not "ptq.report"'),
        (b'{"accuracy": 1}', 'it is JSON, but its "format" is not "ptq.report"'),
    ],
    ids=["empty", "cut", "binary", "nan", "deep", "huge-number", "list", "other-json"],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refusal(tmp_path, content).message


@each_case("version", [9, 1, "3", None, True])
def test_another_format_version_names_both(report: Report, tmp_path: Path, version: Any) -> None:
    error = refusal(tmp_path, json.dumps(changed_json(report, "format_version", version)).encode())
    assert error.message.endswith(f"it has format version {version}, this ptq reads 3")
    assert error.hint == "run ptq evaluate again"


BROKEN = table("""
  times/created | "yesterday" | 'times.created' is 'yesterday', expected a time such as 2026-01-31T12:00:00Z
  metrics/0/quantized_value | "good" | 'metrics[0].quantized_value' is 'good', expected a number
  metrics/0/unit | "apples" | 'metrics[0].unit' is 'apples', expected 'share' or 'decibel' or 'number'
  metrics/0/by_class | [{}] | 'metrics[0].by_class[0]
  metrics/0/quantized_hits | "0x1" | 'metrics[0].quantized_hits' is '0x1', expected hits in hexadecimal
  model/float_model/sha256 | "abc" | 'model.float_model.sha256' is 'abc', expected a SHA-256 in hexadecimal
  model/quantized_model/bytes | 0 | 'model.quantized_model.bytes' is 0, expected at least 1
  calibration/samples | -1 | 'calibration.samples' is -1, expected at least 0
  layers/1/integer | "no" | 'layers[1].integer' is 'no', expected true or false
  gates/0/strict | 1 | 'gates[0].strict' is 1, expected true or false
  surprise | 1 | 'surprise' is not a key of this format version
""")
CONTRADICTORY = table("""
  verdict | "fail" | 'verdict' is 'fail', but the rest of the report says 'pass'
  gates/0/passed | false | 'gates[0].passed' is false, but the rest of the report says true
  metrics/0/drop | null | 'metrics[0].drop' is null, but the rest of the report says 0.004
  quantized_layers | 3 | 'quantized_layers' is 3, but the rest of the report says 2
  model/size_ratio | 9 | 'model.size_ratio' is 9, but the rest of the report says 4.0
  metrics/0/drop_interval/high | -1.0 | 'metrics[0].drop_interval' ends at -1.0, below its -0.005
  metrics/1/quantized_interval/low | "nan" | 'metrics[1].quantized_interval' ends at 31.9, below its nan
  metrics/0/flips/lost | 13 | 'metrics[0].flips' makes a drop of 0.005, the report's is 0.004
  metrics/0/flips/lost | 2000 | 'metrics[0].flips' counts more than the 1000 samples
  metrics/0/flips/samples | 999 | 'metrics[0].flips.samples' is 999, the report's are 1000
  metrics/0/quantized_hits | "f0" | 'metrics[0].quantized_hits' does not fit the report's
""")


@each_case("path, value, message", BROKEN + CONTRADICTORY)
def test_a_value_that_does_not_fit_is_refused(report, tmp_path, path, value, message):
    content = changed_json(report, path, json.loads(value))
    assert message in refusal(tmp_path, json.dumps(content).encode()).message
    assert SCHEMA.is_valid(content) == ((path, value, message) in CONTRADICTORY), "the schema knows the types"


def test_the_schema_has_every_key_and_describes_it(report: Report) -> None:
    odd = replace(report, metrics=tuple(measurement("sqnr_db", item, item) for item in ODD), gates=())
    for written in (report, odd):
        assert [error.message for error in SCHEMA.iter_errors(json.loads(to_json(written)))] == []
    assert set(json.loads(to_json(report))) == set(SCHEMA.schema["required"])
    for name, described in {"": SCHEMA.schema, **SCHEMA.schema["$defs"]}.items():
        for key, entry in described.get("properties", {}).items():
            assert entry.get("description") or "$ref" in entry, f"{name}.{key}"


def test_a_latency_survives_its_file(report: Report) -> None:
    timed = replace(
        report,
        times=Times(
            report.created,
            latency_of(
                0.5,
                own=OwnFileLatency("model.onnx", 2.5, 0.4, Interval(0.3, 0.5, "student")),
                causes=(LatencyCause("MaxPool in integers", 0.1, 0.3, 0.3),),
                warnings=(ReportWarning("slower_than_float", "it is slower", ("ptq bench",)),),
            ),
        ),
    )
    found = parse_document(Report, to_json(timed).encode())
    assert found == timed
    assert [item.code for item in found.all_warnings] == ["slower_than_float"]
    assert found.times.latency.ratio == 0.5


def test_sizes_are_compared_with_the_users_own_file(report: Report) -> None:
    model = replace(report.model, source="models/net.onnx", source_bytes=3_000_000)
    found = parse_document(Report, to_json(replace(report, model=model)).encode())
    sizes = (found.model.float_name, found.model.float_bytes, found.model.size_ratio)
    assert sizes == ("net.onnx", 3_000_000, 3.0)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_two_texts_give_the_flips_of_the_samples(pairs: list[tuple[bool, bool]]) -> None:
    before, after = (list(hits) for hits in zip(*pairs, strict=True))
    texts = hits_to_text(before), hits_to_text(after)
    assert flips_between(*texts, len(pairs)) == count_flips(np.array(before, float), np.array(after, float))
    for hits, text in ((before, texts[0]), (after, texts[1])):
        require_hits(text, len(hits), sum(hits) / len(hits), "metrics[0]")
        assert len(text) == (len(hits) + 3) // 4


@each_case(
    "text, samples, share",
    [("9", 5, 0.4), ("981", 5, 0.4), ("99", 5, 0.6), ("98", 5, 0.4)],
    ids=["short", "long", "a-hit-beyond-the-end", "another-share"],
)
def test_hits_of_other_samples_are_refused(text: str, samples: int, share: float) -> None:
    with pytest.raises(ReportError, match=r"'metrics\[2\].quantized_hits' does not fit"):
        require_hits(text, samples, share, "metrics[2].quantized_hits")


DETAILS_SCHEMA = validator("details")
SAMPLES = (
    ChangedSample(index=3, name="<b>/7.png", label=0, float_class=0, quantized_class=2),
    ChangedSample(index=5, name="8.png", label=2, float_class=0, quantized_class=2),
    ChangedSample(index=6, name="9.png", label=1, float_class=0, quantized_class=2),
    ChangedSample(index=8, name="a.png", label=None, float_class=0, quantized_class=2),
)
DETAILS = Details("2026-01-31T12:00:00Z", "b" * 64, ("a note",), Changes(4, ("cat", "dog", "é"), SAMPLES))


@each_case("details", [DETAILS, replace(DETAILS, changes=None, notes=())])
def test_what_was_written_is_read(details: Details) -> None:
    text = to_json(details)
    assert text.isascii()
    assert parse_document(Details, text.encode()) == details
    DETAILS_SCHEMA.validate(json.loads(text))


def test_what_became_of_a_sample() -> None:
    assert [sample.effect for sample in SAMPLES] == ["lost", "gained", "still wrong", "changed"]


@each_case(
    "path, value, says",
    [
        ("quantized_sha256", "abc", "'quantized_sha256' is 'abc'"),
        ("changes/total", -1, "'changes.total' is -1"),
    ],
)
def test_what_does_not_fit_is_refused(path: str, value: Any, says: str) -> None:
    content = changed_json(DETAILS, path, value)
    with pytest.raises(ReportError, match=re.escape(says)):
        parse_document(Details, json.dumps(content).encode())
    assert not DETAILS_SCHEMA.is_valid(content)
