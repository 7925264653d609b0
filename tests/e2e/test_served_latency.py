"""``ptq quantize`` and ``ptq evaluate`` say how fast the model is.

How fast this machine is decides nothing here.
"""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import ptq_cli
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.evaluation.latency import LatencyTurns
from ptq_cli.runtime.engine import Model
from ptq_cli.runtime.engine_registry import ONNX_RUNTIME, OnnxRuntime
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.timing import Turns

QUANTIZE = "quantize model.onnx --data calib.npz --set runtime.threads=1 --set evaluation.latency=true"
MEASURED = "ptq_cli.latency.served_latency.take_latency_turns"


def turned(*seconds: float) -> LatencyTurns:
    """Turns of models that always take as long as that."""
    clock = tuple(((one,), (one * 1.001,)) for one in seconds)
    return LatencyTurns([Turns(clock, clock)], threads=1)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A machine on which the float model takes 1 ms, each quantized one 2 ms and the user's file 4 ms."""
    asked: list[dict[str, Any]] = []

    def measure(models: list[Any], inputs: list[Any], **words: Any) -> LatencyTurns:
        asked.append({"batch": len(next(iter(inputs[0].values()))), "models": len(models), **words})
        return turned(1e-3, *[2e-3] * (len(models) - 2), 4e-3)

    monkeypatch.setattr(MEASURED, measure)
    return asked


def test_a_slower_model_is_told_everywhere(folder: Path, ptq: Any, slow: list[dict[str, Any]]) -> None:
    outcome = ptq(f"{QUANTIZE} --eval-data eval.npz --set export.serve_batch=4 --run slow")
    assert outcome.status == 0
    assert slow == [{"batch": 4, "models": 3, "threads": 1, "limited": False, "engine": ONNX_RUNTIME}]
    line = "slower than float: 0.50 times as fast (0.50 to 0.50) at batch 4, 1 thread"
    own = "2.00 times as fast as your 'model.onnx' (2.00 to 2.00)"
    assert line in outcome.out and own in outcome.out
    assert "warning: the quantized model is slower than float, 0.50 times as fast: " in outcome.err
    hint = "ptq export --prefer latency --set runtime.threads=1 --set export.serve_batch=4 --run slow keeps"
    assert f"hint: {hint}" in outcome.err
    report = json.loads((folder / "slow/report.json").read_text())
    latency = report["times"]["latency"]
    assert [item["code"] for item in latency["warnings"]] == ["slower_than_float"]
    assert "slower_than_float" not in {item["code"] for item in report["warnings"]}, "it would differ by run"
    assert latency["own"]["name"] == "model.onnx" and latency["own"]["ratio"] == pytest.approx(0.5)
    causes = latency["causes"]
    assert causes and all(0 < cause["share"] <= 1 for cause in causes)
    assert sum(cause["quantized_ms"] for cause in causes) <= 2.1
    markdown, page = ((folder / f"slow/report.{kind}").read_text() for kind in ("md", "html"))
    assert "slower than float, 0.50 times as fast" in markdown and "--prefer latency" in markdown
    assert causes[0]["what"] in page and "ptq export --prefer latency" in page


def test_weights_alone_are_not_told_to_go_to_float(folder, ptq, slow):
    words = "--set activations.mode=float --set export.prefer=size --recover none --run slow"
    assert "hint: integer weights alone speed up single tokens" in ptq(f"{QUANTIZE} {words}").err


def test_without_an_evaluation_it_is_told_all_the_same(folder, ptq, slow):
    outcome = ptq(f"{QUANTIZE} --run slow")
    assert "slower than float: 0.50 times as fast" in outcome.out
    assert "warning: the quantized model is slower than float" in outcome.err
    values = json.loads(ptq(f"{QUANTIZE} --run slow --json").out)
    assert values["report"] is None
    assert values["times"]["latency"]["warnings"][0]["code"] == "slower_than_float"
    result = ptq_cli.quantize("model.onnx", data="calib.npz", run="slow", threads=1)
    assert (result.times.latency.verdict, result.times.latency.speed_up) == ("slower", pytest.approx(0.5))


def test_what_is_not_measured_says_why(folder: Path, ptq: Any) -> None:
    assert "as fast" not in ptq("evaluate --set evaluation.latency=false").out
    assert "not measured: evaluation.latency is false; ptq evaluate --set evaluation.latency=true" in (
        (folder / "ptq-run/report.html").read_text()
    )
    outcome = ptq(
        "quantize model.onnx --data calib.npz --target tensorrt --run trt --set evaluation.latency=true"
    )
    why = "no installed runtime runs models for target tensorrt"
    assert f"note: the latency was not measured: {why}" in outcome.out


def test_a_model_in_which_nothing_is_quantized_is_no_faster_and_no_slower(folder: Path, ptq: Any) -> None:
    plain, told = (onnx.load(f"ptq-run/model{kind}.onnx") for kind in (".float", "_int8"))
    plain.metadata_props.extend(told.metadata_props)
    onnx.save(plain, "none.onnx")
    outcome = ptq("evaluate --model none.onnx --set evaluation.latency=true --set runtime.threads=1")
    assert "note: the latency was not measured: no layer is quantized" in outcome.out
    assert "as fast" not in outcome.out
    assert "the same model" in ptq("bench ptq-run/model.float.onnx none.onnx --seconds 0.2").out
    limit = "--set evaluation.latency=true --set runtime.threads=1 --max-latency-ratio 1.0"
    assert ptq(f"evaluate --model none.onnx {limit}").status == 0
    latency = json.loads((folder / "ptq-run/report.json").read_text())["times"]["latency"]
    assert latency["ratio"] == latency["ratio_interval"]["low"] == latency["ratio_interval"]["high"] == 1.0


def test_a_file_of_the_users_that_cannot_run_is_no_error(folder, ptq, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeFailedError("it has no kernel for this", hint="none")

    open_one = OnnxRuntime.open

    def open_others(engine: OnnxRuntime, model: Model, *, threads: int) -> Session:
        if isinstance(model, Path) and model.name == "model.onnx":
            fail()
        return open_one(engine, model, threads=threads)

    monkeypatch.setattr(OnnxRuntime, "open", open_others)
    outcome = ptq("evaluate --set evaluation.latency=true --set runtime.threads=1")
    assert outcome.status == 0
    assert "the latency of your own file was not measured: it has no kernel for this" in outcome.out
    monkeypatch.setattr(MEASURED, fail)
    outcome = ptq("evaluate --set evaluation.latency=true --set runtime.threads=1")
    assert outcome.status == 0
    assert "note: the latency was not measured: it has no kernel for this" in outcome.out
    refused = ptq("evaluate --set evaluation.latency=true --set runtime.threads=1 --max-latency-ratio 1")
    assert (refused.status, "it has no kernel for this" in refused.err) == (2, True)


def test_a_batch_that_the_model_does_not_take_is_refused_before_the_work(folder, refuse, monkeypatch):
    monkeypatch.setattr("ptq_cli.setup.served_inputs.own_batch_size", lambda _: 4)
    says = "'export.serve_batch' is 3, but the model takes batches of 4"
    refuse(f"{QUANTIZE} --set export.serve_batch=3 --run new", "PTQ-RECIPE-003", says)
    refuse("evaluate --set export.serve_batch=3 --set evaluation.latency=true", "PTQ-RECIPE-003", says)
