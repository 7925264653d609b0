"""What is inside If, Loop and Scan: ONNX Runtime computes it in integers, near to the float model.

One graph for each construct goes through the commands. Nothing else than the values of all steps counts: the
statistics do not depend on how the data were divided.
"""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ptq_cli
from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibration import subject
from ptq_cli.calibration.collect import CountedTensors, collect
from ptq_cli.calibration.subject import open_subject
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.core.errors import NonFiniteActivationError, UnknownNameError
from ptq_cli.core.progress import silent
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import nested_values
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.runtime.engine_registry import find_kernels
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap
from ptq_cli.setup.resolve import Request, resolve
from tests.each_case import each_case
from tests.unit.plan.graphs import build, run, serialized, sqnr_db

IF = """(float[N,8,8,8] x, float[N] g) => (float[N,8,8,8] y)
    <float[8,8,3,3] w, float[8] b, float[8] s, float[8] m, float[8] o, float[8,8,1,1] u, float zero = {0}> {
    [stem] h = Conv<pads = [1,1,1,1]>(x, w, b)
    mean = ReduceMean<keepdims = 0>(g)
    c = Greater(mean, zero)
    [gate] y = If(c) <
        then_branch = t () => (float[N,8,8,8] p) {
            [deep] d = Conv<pads = [1,1,1,1]>(h, w)
            n = BatchNormalization(d, s, b, m, v)
            r = Relu(n)
            p = Add(r, h) },
        else_branch = e () => (float[N,8,8,8] q) { [shallow] q = Conv(h, u) }> }"""
LOOP = """(float[N,8] x) => (float[N,4] y) <float[8,8] w, float[8,4] u, int64 n = {3}, bool go = {1}> {
    [loop] l = Loop(n, go, x) <body = b (int64 i, bool ci, float[N,8] st) => (bool co, float[N,8] t) {
        co = Identity(ci)
        [cell] p = MatMul(st, w)
        a = Add(p, x)
        t = Tanh(a) }>
    [head] y = MatMul(l, u) }"""
GROWING = """(float[N,8] x) => (float[1,4] y) <float[8,8] w, float[8,4] u, int64 n = {3}, bool go = {1}> {
    [loop] l = Loop(n, go, x) <body = b (int64 i, bool ci, float[A,8] st) => (bool co, float[B,8] t) {
        co = Identity(ci)
        [cell] p = MatMul(st, w)
        r = Tanh(p)
        t = Concat<axis = 0>(r, x) }>
    one = Constant<value = int64[1] {0}>()
    k = ReduceMean<keepdims = 1>(l, one)
    [head] y = MatMul(k, u) }"""
SCAN = """(float[N,8] x) => (float[8] f, float[N,8] y) <float[8,8] w, float[8] z, float[8] b> {
    [scan] f, y = Scan<num_scan_inputs = 1, body = b (float[8] st, float[8] e) => (float[8] t, float[8] o) {
        axis = Constant<value = int64[1] {0}>()
        row = Unsqueeze(st, axis)
        [cell] p = Gemm(row, w, b)
        line = Squeeze(p, axis)
        a = Add(line, e)
        t = Tanh(a)
        o = Identity(t) }>(z, x) }"""
TWO_DEEP = """(float[N,8] x) => (float[N,8] y)
    <float[8,8] w, float[8,8] u, int64 n = {4}, int64 two = {2}, bool go = {1}> {
    [loop] y = Loop(n, go, x) <body = b (int64 i, bool ci, float[N,8] st) => (bool co, float[N,8] t) {
        co = Identity(ci)
        first = Less(i, two)
        [gate] p = If(first) <
            then_branch = t1 () => (float[N,8] a) { [early] a = MatMul(st, w) },
            else_branch = e1 () => (float[N,8] d) { [late] d = MatMul(st, u) }>
        t = Tanh(p) }> }"""
RECURRENT = """(float[N,8] x, float[N] g) => (float[4,N] y)
    <float[1,256,8] w, float[1,256,64] r, float[64,4] u, float zero = {0}, int64[1] first = {0}> {
    mean = ReduceMean<keepdims = 0>(g)
    c = Greater(mean, zero)
    [gate] y = If(c) <
        then_branch = t () => (float[4,N] p) {
            steps = Unsqueeze(x, first)
            all, last = LSTM<hidden_size = 64>(steps, w, r)
            h = Squeeze(last, first)
            [head] m = MatMul(h, u)
            p = Transpose(m) },
        else_branch = e () => (float[4,N] q) {
            wide = Concat<axis = 1>(x, x, x, x, x, x, x, x)
            [other] n = MatMul(wide, u)
            q = Transpose(n) }> }"""
CASES = {
    "LSTM in If": (RECURRENT, ["gate/then_branch/head", "gate/else_branch/other"]),
    "If": (IF, ["gate/then_branch/deep", "gate/else_branch/shallow"]),
    "Loop": (LOOP, ["loop/body/cell"]),
    "Loop whose sizes grow": (GROWING, ["loop/body/cell"]),
    "Scan": (SCAN, ["scan/body/cell"]),
    "If in Loop": (TWO_DEEP, ["loop/body/gate/then_branch/early", "loop/body/gate/else_branch/late"]),
}


def written(folder: Path, case: str) -> tuple[Path, ir.Model, dict[str, Array]]:
    variance = np.linspace(0.5, 2.0, 8).astype(np.float32)
    graph = CASES[case][0].replace("float[8] o,", "float[8] v,")
    model = build(graph, constants={"v": variance})
    path = folder / "model.onnx"
    path.write_bytes(serialized(model))
    random = np.random.default_rng(7)
    arrays = {}
    for value in model.graph.inputs:
        shape = [64, *list(value.shape or ())[1:]]
        arrays[value.name or ""] = random.standard_normal(shape).astype(np.float32)
    if "g" in arrays:  # The first half of the batches takes one branch, the second the other.
        arrays["g"] = np.repeat(np.float32([1.0, -1.0]), 32)
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
    return path, model, arrays


@each_case("case", CASES)
def test_it_runs_in_integers_and_near_the_float_model(tmp_path: Path, case: str) -> None:
    path, model, arrays = written(tmp_path, case)
    data, run_path = tmp_path / "data.npz", tmp_path / "run"
    ptq_cli.calibrate(path, run=run_path, data=str(data), batch_size=8)
    result = ptq_cli.export(run=run_path, prefer="size")
    layers = {layer.name: layer for layer in result.plan.layers}
    assert [name for name in CASES[case][1] if layers[name].quantized] == CASES[case][1]
    quantized = ir.load(run_path / "model_int8.onnx")
    kernels = find_kernels(quantized)
    assert {kernels[name].placement for name in CASES[case][1]} == {"integer"}
    assert list(target_faults(quantized, load_target("ort-cpu"))) == []
    for start in (0, 56):
        batch = {name: array[start : start + 8] for name, array in arrays.items()}
        pairs = zip(run(model, batch), run(serialized(quantized), batch), strict=True)
        assert min(sqnr_db(one, other) for one, other in pairs) > 25


@pytest.mark.parametrize("case", ["If", "If in Loop", "Scan"])
def test_the_bytes_do_not_depend_on_how_the_data_are_divided(tmp_path: Path, case: str) -> None:
    path, _, _ = written(tmp_path, case)
    data = str(tmp_path / "data.npz")
    ptq_cli.calibrate(path, run=tmp_path / "whole", data=data, batch_size=16, threads=1)
    ptq_cli.calibrate(path, run=tmp_path / "less", data=data, batch_size=16, threads=2, max_memory="2GB")
    for shard in ("1/2", "2/2"):
        name = shard.replace("/", "of")
        ptq_cli.calibrate(path, run=tmp_path / name, data=data, batch_size=16, shard=shard)
    ptq_cli.merge(tmp_path / "2of2", tmp_path / "1of2", run=tmp_path / "merged")
    names = ("whole", "less", "merged")
    whole, *others = (load_calibration(tmp_path / name / "calibration.safetensors") for name in names)
    assert all(other.statistics == whole.statistics for other in others)
    assert whole.provenance.samples == 64


def test_a_batch_has_as_many_samples_as_what_loops_make_of_them_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = written(tmp_path, "Loop")
    settings = {"data": str(tmp_path / "data.npz"), "data.batch_size": 16}
    resolved = resolve(Request(settings=settings, model=path, folder=tmp_path).by_user())
    each = 2 * 3 * 8 * 4  # The state and the product of three steps, of 8 floats.
    for limit, samples in ((16 * each, 16), (5 * each, 5), (1, 1)):
        monkeypatch.setattr(subject, "NESTED_BYTES", limit)
        assert open_subject(resolved, silent).batch_size == samples


def test_nan_inside_a_branch_is_refused_with_the_tensor(tmp_path: Path) -> None:
    model = build(
        """(float[N,8] x, bool c) => (float[N,4] y) <float[8,4] w> {
        [gate] y = If(c) <then_branch = t () => (float[N,4] p) { l = Log(x) [deep] p = MatMul(l, w) },
                          else_branch = e () => (float[N,4] q) { [other] q = MatMul(x, w) }> }"""
    )
    plan = make_plan(model, load_target("ort-cpu"))
    inner = nested_values(model.graph)
    forward = Session(tap(model, ["l"]), threads=1)
    batch = Batch({"x": np.full((2, 8), -1.0, np.float32), "c": np.array(True)}, None, ("a", "b"))
    with pytest.raises(
        NonFiniteActivationError, match="'l' is nan in an If, Loop or Scan for the batch of 'a'"
    ):
        tensors = CountedTensors(inputs=[], taps=["l"], method="max", nested=inner)
        collect(forward.run, [batch], tensors, threads=1)
    assert {"l", "x"} <= set(plan.measured)


def test_a_branch_that_was_never_taken_stays_float_and_says_so(tmp_path: Path) -> None:
    path, model, arrays = written(tmp_path, "If")
    data = tmp_path / "positive.npz"
    np.savez(data, x=arrays["x"], g=np.abs(arrays["g"]))
    run_path = tmp_path / "run"
    ptq_cli.calibrate(path, run=run_path, data=str(data), batch_size=16)
    result = ptq_cli.export(run=run_path, prefer="size")
    reason = (
        "the else_branch of If 'gate' was never taken during calibration, so the ranges of its tensors are "
        "not known"
    )
    assert result.never_run == {"gate/else_branch/shallow": reason}
    layers = {layer.name: layer for layer in result.plan.layers}
    assert layers["gate/else_branch/shallow"].reason == reason
    assert layers["gate/then_branch/deep"].quantized
    report = ptq_cli.evaluate(run=run_path, data=str(data), batch_size=16).report
    assert {layer.reason for layer in report.layers if layer.name == "gate/else_branch/shallow"} == {reason}
    # What was never seen is computed as the float model does.
    batch = {"x": arrays["x"][:8], "g": np.full(8, -1.0, np.float32)}
    quantized = (run_path / "model_int8.onnx").read_bytes()
    (one,), (other,) = run(model, batch), run(quantized, batch)
    assert sqnr_db(one, other) > 30


def test_a_file_whose_branches_use_the_same_names_is_verified(tmp_path: Path) -> None:
    path, _, _ = written(tmp_path, "If in Loop")
    ptq_cli.calibrate(path, run=tmp_path / "run", data=str(tmp_path / "data.npz"), batch_size=16)
    ptq_cli.export(run=tmp_path / "run", prefer="size")
    model = onnx.load(tmp_path / "run" / "model_int8.onnx")
    (body,) = (
        attribute.g for node in model.graph.node if node.op_type == "Loop" for attribute in node.attribute
    )
    (gate,) = (node for node in body.node if node.op_type == "If")
    for attribute in gate.attribute:
        for index, node in enumerate(attribute.g.node):
            node.name = f"node{index}"
    onnx.save(model, tmp_path / "other.onnx")
    proof = ptq_cli.verify(tmp_path / "other.onnx", random_inputs=True)
    assert proof.verdict == "pass"
    integer = [item.name for item in proof.operators if item.op == "MatMul" and item.placement == "integer"]
    assert [name.split("/")[2] for name in integer if "gate" in name] == ["gate", "gate"]


def test_an_analysis_measures_an_if_with_the_layers_inside(tmp_path: Path) -> None:
    path, _, _ = written(tmp_path, "If")
    data = str(tmp_path / "data.npz")
    ptq_cli.calibrate(path, run=tmp_path / "run", data=data, batch_size=16)
    ptq_cli.export(run=tmp_path / "run", prefer="size")
    analysis = ptq_cli.analyze(run=tmp_path / "run", data=data).analysis
    measured = {layer.name: layer for layer in analysis.layers if layer.sensitivity is not None}
    assert list(measured) == ["stem", "gate"]
    assert measured["gate"].sensitivity.sqnr_only_quantized_db < 60  # type: ignore[union-attr]
    assert {"gate/then_branch/deep", "gate/else_branch/shallow"} <= {layer.name for layer in analysis.layers}
    # Weights inside have rows of their own.
    readers = {name for tensor in analysis.tensors for name in tensor.layers if tensor.kind == "weight"}
    assert readers == {"stem", *CASES["If"][1]}
    with pytest.raises(UnknownNameError, match="is inside 'gate', which is measured as one layer"):
        ptq_cli.analyze(run=tmp_path / "run", data=data, layers=["gate/then_branch/deep"])


@pytest.mark.parametrize(
    ("match", "integer"),
    [
        ("gate", set()),
        ("gate/then_branch/*", {"gate/else_branch/shallow"}),
        ("gate/else_branch/shallow", {"gate/then_branch/deep"}),
    ],
)
def test_layers_are_left_out_by_their_path(tmp_path: Path, match: str, integer: set[str]) -> None:
    path, _, _ = written(tmp_path, "If")
    ptq_cli.calibrate(path, run=tmp_path / "run", data=str(tmp_path / "data.npz"), batch_size=16)
    output = tmp_path / "some.onnx"
    result = ptq_cli.export(run=tmp_path / "run", output=output, exclude=[match], prefer="size")
    inside = set(CASES["If"][1])
    assert {layer.name for layer in result.plan.layers if layer.quantized} & inside == integer
