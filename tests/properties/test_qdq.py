"""Random small networks: what is quantized stays well formed, runs, and computes nearly the same."""

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.structure import structure_faults
from ptq_cli.runtime.engine_registry import count_kernels
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

LEAST_DB = 12.0

# A busy machine makes one slow example of any test; the cases are the same in every run.
steady = settings(deadline=None, derandomize=True, max_examples=25)

IMAGE_STEPS = {
    "conv": "{out} = Conv<pads=[1,1,1,1]>({a}, k{i}, b{i})",
    "depthwise": "{out} = Conv<group=4, pads=[1,1,1,1]>({a}, d{i})",
    "relu": "{out} = Relu({a})",
    "clip": "{out} = Clip({a}, low, high)",
    "add": "{out} = Add({a}, {b})",
    "gate": "g{i} = Sigmoid({b})\n{out} = Mul({a}, g{i})",
    "pool": "{out} = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>({a})",
    "average": "{out} = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>({a})",
    "concat": "j{i} = Concat<axis=1>({a}, {b})\n{out} = Conv(j{i}, m{i})",
    "float": "{out} = Tanh({a})",
}
IMAGE_WEIGHTS = {
    "conv": "float[4,4,3,3] k{i}, float[4] b{i}",
    "depthwise": "float[4,1,3,3] d{i}",
    "concat": "float[4,8,1,1] m{i}",
}
ROW_STEPS = {
    "matmul": "{out} = MatMul({a}, k{i})",
    "matmul_bias": "p{i} = MatMul({a}, k{i})\n{out} = Add(p{i}, b{i})",
    "gemm": "{out} = Gemm({a}, k{i}, b{i})",
    "relu": "{out} = Relu({a})",
    "add": "{out} = Add({a}, {b})",
    "reshape": "r{i} = Reshape({a}, pairs)\nq{i} = MatMul(r{i}, h{i})\n{out} = Reshape(q{i}, flat)",
    "transpose": "t{i} = Transpose<perm=[1,0]>({a})\ns{i} = Tanh(t{i})\n{out} = Transpose<perm=[1,0]>(s{i})",
    "softmax": "{out} = Softmax({a})",
    "norm": "{out} = LayerNormalization({a}, one, zero)",
}
ROW_WEIGHTS = {
    "matmul": "float[8,8] k{i}",
    "matmul_bias": "float[8,8] k{i}, float[8] b{i}",
    "gemm": "float[8,8] k{i}, float[8] b{i}",
    "reshape": "float[4,4] h{i}",
}


@st.composite
def networks(draw: st.DrawFn) -> str:
    """The text of a chain of operators, some of which read an earlier value too."""
    image = draw(st.booleans())
    steps, weights = (IMAGE_STEPS, IMAGE_WEIGHTS) if image else (ROW_STEPS, ROW_WEIGHTS)
    chosen = draw(st.lists(st.sampled_from(sorted(steps)), min_size=1, max_size=7))
    chosen.append("conv" if image else draw(st.sampled_from(["matmul", "gemm"])))
    nodes, constants, values = [], [], ["x"]
    for i, step in enumerate(chosen):
        other = draw(st.sampled_from(values))
        nodes.append(steps[step].format(out=f"v{i}", a=values[-1], b=other, i=i))
        constants += [weights[step].format(i=i)] if step in weights else []
        values.append(f"v{i}")
    extra = draw(st.sampled_from(values[1:]))
    outputs = "float[] y" if extra == values[-1] else f"float[] y, float[] {extra}"
    constants.append("float low = {-1}, float high = {2}" if image else "float[8] one, float[8] zero")
    constants += [] if image else ["int64[3] pairs = {-1,2,4}, int64[2] flat = {-1,8}"]
    shape = "float[N,4,6,6]" if image else "float[N,8]"
    nodes.append(f"y = Identity({values[-1]})")
    return f"({shape} x) => ({outputs}) <{', '.join(constants)}> {{ {chr(10).join(nodes)} }}"


@steady
@given(networks())
def test_a_quantized_network_is_well_formed_and_nearly_the_same(graph: str):
    model = build(graph)
    plan = make_plan(model, load_target("ort-cpu"))
    result = quantized(model, plan)
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    assert list(structure_faults(result)) == []
    assert [layer.name for layer in plan.layers if not layer.quantized and not layer.reason] == []
    inputs = sample(model, seed=9)
    for reference, other in zip(run(model, inputs), run(result, inputs), strict=True):
        # A value that is zero everywhere, or nearly, has no signal to compare with.
        assert sqnr_db(reference, other) > LEAST_DB or np.max(np.abs(reference - other)) < 1e-3


@steady
@given(networks())
def test_optimizing_a_quantized_network_changes_little(graph: str):
    model = build(graph)
    # Few samples, so that others leave the calibrated ranges: then kernels must saturate.
    result = quantized(model, seeds=range(1))
    inputs = sample(model, seed=9)
    for written, fast in zip(run(result, inputs, optimize=False), run(result, inputs), strict=True):
        assert np.max(np.abs(written - fast)) <= 0.05 * np.max(np.abs(written)) + 1e-6


@steady
@given(networks())
def test_what_the_plan_calls_integer_is(graph: str):
    model = build(graph)
    plan = make_plan(model, load_target("ort-cpu"))
    counts = count_kernels(serialized(quantized(model, plan)))
    for ops in (("Conv",), ("Gemm", "MatMul")):
        layers = [layer for layer in plan.layers if layer.op in ops]
        assert sum(counts.integer[op] for op in ops) == sum(layer.quantized for layer in layers)
        assert sum(counts.floating[op] for op in ops) == sum(not layer.quantized for layer in layers)


@steady
@given(networks(), st.integers(1, 9))
def test_quantizing_leaves_the_float_model_and_any_batch_runs(graph: str, batch: int):
    model = build(graph)
    before = serialized(model)
    result = quantized(model)
    assert serialized(model) == before
    inputs = sample(model, seed=1, batch=batch)
    shapes = [array.shape for array in run(model, inputs)]
    assert [array.shape for array in run(result, inputs)] == shapes
    assert [array.shape for array in run(result, inputs, optimize=False)] == shapes
