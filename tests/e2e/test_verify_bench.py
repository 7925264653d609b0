"""``ptq verify`` and ``ptq bench`` as a stranger calls them."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Ptq, Refuse


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_verify_tells_what_is_proven(folder: Path, ptq: Ptq) -> None:
    outcome = ptq("verify --min-integer-share 0.95")
    assert outcome.status == 0, outcome.err
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert any(line.startswith("Conv QLinearConv 1 ") for line in lines)
    assert any(line.startswith("integers: 100 % of ") for line in lines)
    assert any(line.startswith("structure: right for ort-cpu") for line in lines)
    assert lines[-1] == "pass"


def test_a_missed_share_exits_with_3(folder: Path, ptq: Ptq) -> None:
    import onnx

    path = "ptq-run/model.int8.onnx"
    model = onnx.load(path)
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    kept = [node for node in model.graph.node if conv.input[0] not in node.output]
    conv.input[0] = "x"
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.save(model, "float_input.onnx")
    outcome = ptq("verify float_input.onnx --min-integer-share 0.95 --json")
    assert outcome.status == 3
    values = json.loads(outcome.out)
    assert values["verdict"] == "fail"
    assert values["integer_share"] < 0.95
    (conv_values,) = [item for item in values["operators"] if item["op"] == "Conv"]
    assert conv_values["reason"] == "its input 'x' is not quantized: the model's own"


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("verify ptq-run/model.float.onnx", "PTQ-MODEL-008", "holds no QuantizeLinear"),
        ("verify nowhere.onnx", "PTQ-FILE-001", "nowhere.onnx"),
        ("verify --min-integer-share 95", "PTQ-USAGE-001", "--min-integer-share is 95, a share from 0 to 1"),
        ("verify --target tensorflow", "PTQ-RECIPE-004", "unknown target 'tensorflow'"),
        ("bench --runs 0", "PTQ-RECIPE-003", "runs must be at least 1"),
        ("bench --batch 0", "PTQ-RECIPE-003", "--batch must be at least 1"),
        ("bench nowhere.onnx", "PTQ-FILE-001", "nowhere.onnx"),
    ],
)
def test_what_is_refused(folder: Path, refuse: Refuse, command: str, code: str, message: str) -> None:
    refuse(command, code, message)


def test_bench_tells_latencies_and_a_ratio(folder: Path, ptq: Ptq) -> None:
    outcome = ptq("bench --threads 1 --runs 5")
    assert outcome.status == 0, outcome.err
    assert "1 thread, batch 1, 5 turns" in outcome.out
    assert "from made-up inputs" in outcome.out
    assert "ptq-run/model.int8.onnx is " in outcome.out


def test_bench_gives_json_alone(folder: Path, ptq: Ptq) -> None:
    values = json.loads(ptq("bench ptq-run/model.float.onnx --threads 1 --runs 5 --json").out)
    assert values["models"][0]["ratio_to_first"] is None
    assert values["models"][0]["p50"] > 0
