"""The target openvino as a stranger uses it: its models are verified, evaluated and timed on OpenVINO."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq_cli.evaluation.latency import LatencyTurns
from ptq_cli.runtime.engine import Model
from ptq_cli.runtime.openvino import CompiledModel, OpenVino
from ptq_cli.runtime.timing import Turns
from tests.e2e.conftest import Ptq, Refuse
from tests.each_case import each_case
from tests.unit.plan.graphs import build, serialized

QUANTIZE = "quantize model.onnx --data calib.npz --target openvino --set runtime.threads=1"
INSTALL = "pip install 'ptq-cli[openvino]'"

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs openvino")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads of each model that OpenVINO was given to run."""
    threads_of: list[int] = []
    open_one = OpenVino.open

    def noted(engine: OpenVino, model: Model, *, threads: int) -> CompiledModel:
        threads_of.append(threads)
        return open_one(engine, model, threads=threads)

    monkeypatch.setattr(OpenVino, "open", noted)
    return threads_of


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the package openvino as good as not installed."""
    find = importlib.util.find_spec

    def hidden(name: str, package: str | None = None) -> Any:
        return None if name == "openvino" else find(name, package)

    return lambda: monkeypatch.setattr(importlib.util, "find_spec", hidden)


@needs_openvino
def test_a_model_is_made_verified_evaluated_and_gated_on_it(folder, ptq, refuse, opened, hide):
    made = ptq(QUANTIZE)
    assert made.status == 0, made.err
    assert "quantized 5 of 5 layers for openvino" in made.out
    assert "integer kernels of OpenVINO on this CPU: 1 Conv, 1 Gemm" in made.out

    values = json.loads(ptq("verify --json").out)
    assert (values["verdict"], values["target"], values["faults"]) == ("pass", "openvino", [])
    assert values["runtime"].startswith("openvino 20")
    placed = {item["name"]: item["placement"] for item in values["operators"]}
    assert (placed["conv"], placed["relu"], placed["fc"]) == ("integer", "part", "integer")

    opened.clear()
    assert ptq("evaluate --data eval.npz --min cosine=0.9 --set runtime.threads=1").status == 0
    assert opened == [1], "the float model runs on ONNX Runtime"
    opened.clear()
    slow = ptq(
        "evaluate --data eval.npz --set runtime.threads=1 --set evaluation.latency=true "
        "--max-latency-ratio 0.001"
    )
    assert slow.status == 3 and "FAIL: 1 of 1 gate failed" in slow.out
    (gate,) = json.loads((folder / "ptq-run/report.json").read_text())["gates"]
    assert gate["kind"] == "max_latency_ratio"
    assert len(opened) > 2, "the float model takes its turns there, too"
    assert ptq("gate ptq-run/report.json --max-latency-ratio 1000").status == 0

    hide()
    for command in ("verify", "evaluate --data eval.npz", "bench"):
        refuse(command, "PTQ-RUNTIME-005", "OpenVINO, which is not installed", hint=INSTALL)


POOLED = """(float[N,4,8,8] x) => (float[] y) <float s = {0.03}, uint8 z = {100}, float o = {0.1}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = POOL(d)
    r = QuantizeLinear(a, o, z) y = DequantizeLinear(r, o, z) }"""


@needs_openvino
@each_case("pool, said", [
    ("AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>", "AveragePool 'a': "),
    # Its last windows begin in the padding, where ONNX has none: the result has another shape.
    ("MaxPool<kernel_shape=[3,2], strides=[3,2], pads=[0,0,1,1], ceil_mode=1>", "MaxPool 'a': inf steps"),
])  # fmt: skip
def test_verify_fails_where_openvino_computes_something_else(tmp_path, monkeypatch, ptq, pool, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool.onnx").write_bytes(serialized(build(POOLED.replace("POOL", pool))))
    found = ptq("verify pool.onnx --target openvino --random-inputs --set runtime.threads=1")
    assert found.status == 3 and "wrong: 'y' differs by more than rounding explains" in found.out
    assert said in found.out


TWICE = """(float[N,4,8,8] x) => (float[N,8,6,6] y) <float[8,4,3,3] w> {
    c = Conv(x, w) m = ReduceMean<axes=[1], keepdims=1>(c) y = Sub(c, m) }"""
TWICE_IN_PAIRS = """(float[N,4,8,8] x) => (float[N,8,6,6] y)
    <float s = {0.03}, uint8 z = {100}, int8[8,4,3,3] w, float v = {0.01}, int8 i = {0}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) k = DequantizeLinear(w, v, i)
    c = Conv(d, k) m = ReduceMean<axes=[1], keepdims=1>(c) y = Sub(c, m) }"""


@needs_openvino
def test_verify_compares_a_file_with_open_sizes_as_openvino_compiles_it(tmp_path, monkeypatch, ptq):
    """A Conv without a bias, of which a Sub has both inputs, OpenVINO scales twice for open sizes alone."""
    monkeypatch.chdir(tmp_path)
    weight = np.random.default_rng(0).integers(-60, 61, (8, 4, 3, 3)).astype(np.int8)
    for size, status in (("N", 3), ("4", 0)):
        graph = build(TWICE_IN_PAIRS.replace("[N,", f"[{size},"), opset=13, constants={"w": weight})
        (tmp_path / "other.onnx").write_bytes(serialized(graph))
        found = ptq("verify other.onnx --target openvino --random-inputs --set runtime.threads=1")
        assert found.status == status, found.out
        assert ("only where it is compiled for inputs of any size" in found.out) == (status == 3)
    (tmp_path / "model.onnx").write_bytes(serialized(build(TWICE, opset=13)))
    np.save("x.npy", np.random.default_rng(1).standard_normal((8, 4, 8, 8)).astype(np.float32))
    assert ptq("quantize model.onnx --data x.npy --target openvino --set runtime.threads=1").status == 0
    assert ptq("verify --set runtime.threads=1").status == 0, "ptq writes it with a bias"


@needs_openvino
def test_bench_runs_models_on_each_runtime_that_is_named(folder: Path, ptq: Ptq, opened: list[int]) -> None:
    words = "bench --runs 5 --threads 1 --json"
    (own,) = json.loads(ptq(words).out)["scenarios"]
    assert own["latency"]["runtime"] == "ONNX Runtime" and not opened, "it was quantized for that"
    both = json.loads(ptq(f"{words} --runtime openvino --runtime onnxruntime").out)["scenarios"]
    assert [item["latency"]["runtime"] for item in both] == ["OpenVINO", "ONNX Runtime"]
    assert set(opened) == {1} and len(opened) >= 2
    assert all(model["p50"] > 0 for item in both for model in item["latency"]["models"])


@needs_openvino
def test_a_slower_model_is_told_with_what_can_be_done_about_it(folder, ptq, monkeypatch):
    clock = tuple(((one,), (one * 1.001,)) for one in (1e-3, 2e-3, 1e-3))
    measured = "ptq_cli.latency.served_latency.take_latency_turns"
    monkeypatch.setattr(measured, lambda *given, **words: LatencyTurns([Turns(clock, clock)], threads=1))
    outcome = ptq(f"{QUANTIZE} --set evaluation.latency=true")
    assert "warning: the quantized model is slower than float, 0.50 times as fast" in outcome.err
    assert "serve the float model" in outcome.err
    assert "--prefer latency" not in outcome.err, "it would be refused"


@pytest.mark.parametrize("command", [QUANTIZE, "export --target openvino", "bench --runtime openvino"])
def test_a_missing_package_is_told_before_any_work(refuse, hide, command):
    hide()
    refuse(command, "PTQ-RUNTIME-005", "OpenVINO, which is not installed", hint=INSTALL)


def test_a_runtime_that_does_not_exist_is_refused(refuse: Refuse) -> None:
    refuse("bench --runtime openvno", "PTQ-RECIPE-004", "did you mean 'openvino'?", hint="onnxruntime")
