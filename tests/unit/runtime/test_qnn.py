"""The HTP simulator as a runtime, and a target without it."""

import importlib.util

import numpy as np
import pytest

from ptq_cli.core.errors import MissingRuntimeError
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.runtime import qnn
from ptq_cli.runtime.engine import ON_CPU, ON_FLOATS, ON_HTP
from ptq_cli.runtime.engine_registry import IN_FLOATS, engine_alone, engine_of, measuring_engine
from ptq_cli.runtime.qnn import QNN_HTP
from tests.unit.plan.graphs import build, quantized, run, sample, serialized

NET = """(float[1,3,8,8] x) => (float[1,2,16,8] y)
    <float[8,3,3,3] v, float[8] b, float[4,8,1,1] w, int64[4] f = {1, 2, 16, 8}> {
    a = Conv<pads=[1,1,1,1]>(x, v, b) r = Relu(a) c = Conv(r, w) y = Reshape(c, f) }"""
needs_simulator = pytest.mark.skipif(
    importlib.util.find_spec(qnn.MODULE) is None, reason="needs onnxruntime-qnn, Qualcomm's simulator"
)


def test_a_target_without_its_package_has_no_runtime(monkeypatch):
    monkeypatch.setattr(qnn, "MODULE", "no_such_package")
    target = load_target("qnn")
    assert engine_of(target) is None and measuring_engine(target) is IN_FLOATS is measuring_engine(
        target, "onnxruntime"
    )
    assert engine_alone(target) is None is engine_alone(target, "onnxruntime")
    with pytest.raises(MissingRuntimeError, match="HTP simulator is not installed") as caught:
        measuring_engine(target, "qnn")
    assert caught.value.hint == qnn.HINT


@needs_simulator
def test_it_places_and_computes_a_graph_as_it_is_written():
    model = build(NET)
    made = quantized(model, make_plan(model, load_target("qnn")))
    kernels = QNN_HTP.find_kernels(made)
    assert {name: kernels[name].name for name in "acy"} == dict.fromkeys("acy", ON_HTP)
    assert kernels["r"].placement == "gone"
    inputs = sample(model, batch=1)
    wanted = run(made, inputs, optimize=False)[0]
    (found,) = QNN_HTP.open(serialized(made), threads=1).run(inputs)
    assert np.max(np.abs(wanted - found)) <= 2 * np.ptp(wanted) / 255
    floats = QNN_HTP.find_kernels(build(NET.replace("y = Reshape(c, f)", "d = Erf(c) y = Reshape(d, f)")))
    assert [floats[name].name for name in "acd"] == [ON_FLOATS, ON_FLOATS, ON_CPU]


@needs_simulator
def test_a_static_batch_runs_as_often_as_the_samples_ask_for():
    model = build(NET)
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)}
    (found,) = QNN_HTP.open(serialized(model), threads=1).run(inputs)
    wanted = np.concatenate([run(model, {"x": inputs["x"][index : index + 1]})[0] for index in range(3)])
    np.testing.assert_allclose(found, wanted, atol=0.02)
