"""OpenVINO as a runtime: what it computes, which primitives it has, and what is said where it is missing."""

import importlib.util
import sys

import numpy as np
import pytest

from ptq_cli.core.errors import MissingRuntimeError, RuntimeFailedError
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.runtime import openvino
from ptq_cli.runtime.openvino import MOST_SHAPES, OPEN_VINO, CompiledModel
from ptq_cli.runtime.session import Session
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, sample, serialized, sqnr_db

NET = """(float[N,3,16,16] x) => (float[N,4,8,8] y)
    <float[16,3,3,3] u, float[16,16,3,3] v, float[4,16,1,1] w> {
    a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, u) h = HardSwish(a)
    b = Conv<pads=[1,1,1,1]>(h, v) s = Add(h, b) y = Conv(s, w) }"""

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs openvino")


@pytest.fixture(scope="module")
def net():
    model = build(NET)
    return model, quantized(model, make_plan(model, load_target("openvino")))


@needs_openvino
def test_it_computes_what_onnx_runtime_computes(net, tmp_path):
    model = net[0]
    path = tmp_path / "model.onnx"
    path.write_bytes(serialized(model))
    inputs = sample(model, batch=2)
    wanted = Session(serialized(model), threads=1).run(inputs)
    for form in (path, path.read_bytes(), serialize(model)):
        found = OPEN_VINO.open(form, threads=1).run(inputs)
        assert [array.shape for array in found] == [array.shape for array in wanted]
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-4)


@needs_openvino
def test_constants_beside_the_graph_are_found(tmp_path):
    import onnx

    model = onnx.load_from_string(serialized(build(NET)))
    onnx.save_model(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    stored = StoredModel(
        content=(tmp_path / "m.onnx").read_bytes(), data=(tmp_path / "m.data",), folder=tmp_path
    )
    inputs = sample(build(NET))
    found, wanted = (opened(stored, threads=1).run(inputs)[0] for opened in (OPEN_VINO.open, Session))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@needs_openvino
def test_an_input_that_no_operator_reads_is_left_out():
    model = build("(float[N,4] x, float[N,4] unread) => (float[N,4] y) { y = Relu(x) }")
    inputs = sample(model)
    np.testing.assert_array_equal(
        OPEN_VINO.open(serialized(model), threads=1).run(inputs)[0], np.maximum(inputs["x"], 0)
    )


@needs_openvino
def test_more_shapes_than_are_compiled_run_too(net):
    model = net[0]
    opened = OPEN_VINO.open(serialized(model), threads=1)
    for batch in range(1, MOST_SHAPES + 3):
        assert opened.run(sample(model, batch=batch))[0].shape[0] == batch


@needs_openvino
def test_a_run_asks_nothing_of_the_whole_graph(net, monkeypatch):
    opened = OPEN_VINO.open(serialized(net[0]), threads=1)
    inputs = sample(net[0])
    wanted = opened.run(inputs)

    class Untouched:
        def __getattr__(self, name):
            raise AssertionError(f"{name} takes as long as there are nodes")

    monkeypatch.setattr(opened, "_model", Untouched())
    np.testing.assert_array_equal(opened.run(inputs)[0], wanted[0])


@needs_openvino
def test_outputs_stay_as_they_were_when_the_next_batch_runs(net):
    opened = OPEN_VINO.open(serialized(net[0]), threads=1)
    first = opened.run(sample(net[0]))[0]
    before = first.copy()
    opened.run({name: array * 2 + 1 for name, array in sample(net[0]).items()})
    np.testing.assert_array_equal(first, before)


@needs_openvino
def test_each_operator_is_a_primitive_or_a_part_of_one(net):
    kernels = OPEN_VINO.find_kernels(net[1])
    placements = {name: kernels[name].placement for name in "ahbsy"}
    assert placements.pop("s") != "float"  # It is a part of a Conv if the size of the batch is known.
    assert placements == {"a": "integer", "h": "gone", "b": "integer", "y": "integer"}
    assert all(kernels[name].name for name in "aby")
    counts = OPEN_VINO.count_kernels(serialize(net[1]))
    assert (counts.runtime, counts.integer["Conv"], counts.floating["Conv"]) == ("OpenVINO", 3, 0)
    assert OPEN_VINO.count_kernels(serialize(net[0])).floating["Conv"] == 3


@needs_openvino
def test_what_cannot_be_loaded_or_run_is_an_error_of_ours(net):
    with pytest.raises(RuntimeFailedError, match="OpenVINO cannot load the model: "):
        CompiledModel(b"none", threads=1)
    opened = OPEN_VINO.open(serialized(net[0]), threads=1)
    with pytest.raises(RuntimeFailedError, match="OpenVINO failed on a batch: "):
        opened.run({"x": np.zeros((1, 5, 16, 16), np.float32)})


@needs_openvino
def test_a_file_of_onnx_runtime_on_arm_is_told_the_target(monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("Check failed:\nConvolution input precision should be single")

    monkeypatch.setattr(openvino, "_read", refuse)
    with pytest.raises(RuntimeFailedError) as caught:
        CompiledModel(b"", threads=1)
    assert (
        caught.value.hint == "on ARM, OpenVINO cannot pad channels of integers: export with --target openvino"
    )


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingRuntimeError, match="target 'openvino' needs OpenVINO") as caught:
        OPEN_VINO.require()
    assert caught.value.hint == "pip install 'ptq-cli[openvino]'"


def test_a_package_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingRuntimeError, match="cannot be imported"):
        openvino._openvino()


GROUPS = """(float[N,4,4,4,4] x) => (float[] y) <float[6,2,3,3,3] u, float[4,1,3,3,3] v> {
    d = Conv<group=4, pads=[1,1,1,1,1,1]>(x, v) y = Conv<group=2, pads=[1,1,1,1,1,1]>(d, u) }"""
MEAN = """(float[N,3,16] x) => (float[] y) <float[8,3,3] u, float[8] s, float[8] v = {1,2,3,4,5,6,7,8},
    float[8,5] w> { c = Conv(x, u) r = Relu(c) n = BatchNormalization(r, s, s, s, v)
    m = ReduceMean<axes=[2], keepdims=0>(n) y = Gemm(m, w) }"""
POOL = """(float[N,3,16] x) => (float[] m, float[] y) <float[8,3,3] u, float[1,8,1] k, float[8,5] w> {
    c = Conv(x, u) s = Sigmoid(c) n = Mul(s, k) m = GlobalAveragePool(n) f = Flatten(m) y = Gemm(f, w) }"""


JOINED = """(float[N,3,6] x, float[N,4,6] z) => (float[] y) <float[6,5] w> { c = Concat<axis=1>(x, z)
    m = MatMul(c, w) r = Relu(c) n = MatMul(r, w) y = Add(m, n) }"""


GATHERED = """(float[N,2,3,8] x) => (float[] y) <float[2,8,5] w, float[5,5] v, int64[1] i = {0}> {
    m = MatMul(x, w) g = Gather<axis=1>(m, i) y = MatMul(g, v) }"""


@needs_openvino
@each_case(
    "graph, integers",
    [(GROUPS, {"d"}), (MEAN, {"c"}), (POOL, {"c", "y"}), (JOINED, {"n"}), (GATHERED, {"g", "y"})],
)
def test_what_openvino_computes_wrongly_is_written_in_another_form(graph: str, integers: set[str]):
    model = build(graph, opset=17)
    plan = make_plan(model, load_target("openvino"))
    content, inputs = serialized(quantized(model, plan)), sample(model)
    wanted = Session(content, threads=1, optimize=False).run(inputs)[0]
    found = OPEN_VINO.open(content, threads=1).run(inputs)[0]
    assert {layer.name for layer in plan.layers if layer.quantized} == integers
    assert sqnr_db(wanted, found) > 100


@needs_openvino
def test_each_model_has_a_core_of_its_own(net):
    """With one for all OpenVINO 2026.4 ended the process where an earlier model was gone."""
    one, other = (OPEN_VINO.open(serialized(net[0]), threads=1) for _ in range(2))
    assert one._core is not other._core
