"""Outputs in steps of their grid; kernels alone, of which rounding is one step and what is wrong is named."""

import math
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from packaging.version import Version

from ptq_cli.core.documents import encode
from ptq_cli.evaluation.verification import (
    KernelComparison,
    KernelDifference,
    OutputComparison,
    OutputDifference,
    OutputSums,
    Verification,
    compare_kernels,
    compare_optimized,
)
from ptq_cli.pipeline.evaluation.compared_kernels import right_together
from ptq_cli.pipeline.run_verify import VerifyOptions, run_verify
from ptq_cli.qdq.proof.kernels_apart import kernels_apart
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.shown.verification_tables import print_verification
from tests.each_case import each_case

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
# Its range ends at 0.13: the integer kernel of ONNX Runtime gives 0 for probabilities above that.
SOFTMAX = f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y)
    <float sx = {{0.05}}, uint8 zx = {{128}}, float sy = {{0.0005}}, uint8 zy = {{0}}> {{
    q = QuantizeLinear(x, sx, zx) d = DequantizeLinear(q, sx, zx)
    [soft] p = Softmax(d)
    pq = QuantizeLinear(p, sy, zy) y = DequantizeLinear(pq, sy, zy) }}"""


def deep(layers: int) -> ir.Model:
    """MatMuls in a row, whose results ONNX Runtime rounds to other integers now and then."""
    random = np.random.default_rng(0)
    nodes, tensor, initializers = [], "x", []
    for index in range(layers):
        # No sum of two products saturates, so that every processor has the same kernels.
        weight = random.integers(-64, 65, (64, 64)).astype(np.int8)
        numbers = {f"w{index}": weight, f"s{index}": np.float32(0.0437), f"z{index}": np.uint8(121)}
        numbers |= {f"v{index}": np.float32(0.00382), f"n{index}": np.int8(0)}
        initializers += [
            onnx.numpy_helper.from_array(np.asarray(value), key) for key, value in numbers.items()
        ]
        nodes.append(
            f"q{index} = QuantizeLinear({tensor}, s{index}, z{index}) "
            f"d{index} = DequantizeLinear(q{index}, s{index}, z{index}) "
            f"k{index} = DequantizeLinear(w{index}, v{index}, n{index}) "
            f"[matmul{index}] m{index} = MatMul(d{index}, k{index})"
        )
        tensor = f"m{index}"
    text = f"{HEAD} g (float[n, 64] x) => (float[n, 64] {tensor}) {{ {' '.join(nodes)} }}"
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(initializers)
    return ir.from_proto(proto)


@pytest.mark.skipif(
    Version(onnxruntime.__version__) >= Version("1.32"), reason="its Softmax saturates: no kernel is wrong"
)
def test_a_kernel_that_computes_something_else_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(SOFTMAX), "soft.onnx")
    np.savez("x.npz", x=np.float32([[5, 0, 0, 0], [0, 0, 0, 0]]))

    def verify(limit: float = 2.0) -> Verification:
        request = Request(settings={"data": "x.npz"})
        options = VerifyOptions(max_kernel_steps=limit)
        return run_verify(request, RunDirectory(tmp_path), tmp_path / "soft.onnx", options)

    result = verify()
    found = result.kernel_comparison
    assert found is not None and found.samples == 2
    (wrong,) = found.wrong
    assert (wrong.node, wrong.op, wrong.steps, wrong.share) == ("soft", "Softmax", 255, 5 / 8)
    assert encode(result)["kernel_comparison"]["differences"][0]["node"] == "soft"
    assert result.verdict == "fail"
    print_verification(result, show_all=False)
    out = capsys.readouterr().out
    assert (
        "wrong: run alone on 2 samples, 1 of 2 kernels differ by more than 2 steps" in out.replace("\n", " ")
        and "Softmax 'soft': 255 steps" in out
    )
    assert not verify(limit=255).kernel_comparison.wrong


def test_steps_that_add_up_are_no_fault(capsys):
    model = deep(12)
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32) * 2
    found = replace(compare_kernels(model, [{"x": x}], {}), limit=1.0)
    assert not found.wrong
    assert found.kernels == 13


def test_units_are_the_operators_between_integers():
    units = kernels_apart(deep(2)).units
    assert [(unit.node, unit.tensor, unit.step) for unit in units] == [
        (units[0].node, "q0", 1), ("matmul0", "q1", 1), ("matmul1", "m1", 0)
    ]  # fmt: skip
    assert units[0].op == "QuantizeLinear"


@pytest.mark.parametrize(("dtype", "steps"), [("uint8", 1), ("uint16", 257)])
def test_a_step_is_one_of_8_bits(dtype, steps):
    text = SOFTMAX.replace("uint8", dtype)
    assert {unit.step for unit in kernels_apart(ir.from_onnx_text(text)).units} == {steps}


def test_the_order_of_a_sum_whose_result_is_only_noise_makes_no_kernel_wrong():
    """Of values around their mean the mean is 1e-9, and a grid that is made for it has steps of 1e-11."""
    text = f"""{HEAD} g (float[n, 1, 4] x) => (float[n, 1, 1] y)
        <float sx = {{0.02}}, uint8 zx = {{128}}, float sy = {{1e-11}}, uint8 zy = {{128}},
        int64[1] axes = {{2}}> {{ q = QuantizeLinear(x, sx, zx) d = DequantizeLinear(q, sx, zx)
        [mean] m = ReduceMean<keepdims=1>(d, axes)
        r = QuantizeLinear(m, sy, zy) y = DequantizeLinear(r, sy, zy) }}"""
    (unit,) = (item for item in kernels_apart(ir.from_onnx_text(text)).units if item.op == "ReduceMean")
    assert unit.rounding == int(2.0**-20 * 128 * np.float32(0.02) / np.float32(1e-11))
    (unit,) = (item for item in kernels_apart(ir.from_onnx_text(SOFTMAX)).units if item.op == "Softmax")
    assert unit.rounding == 0


def test_kernels_that_are_right_together_are_not_wrong():
    """OpenVINO makes other kernels of a part of a model: one that is wrong alone may be right in it."""
    wrong = KernelDifference(node="n", op="AveragePool", tensor="t", steps=100.0, share=0.9)
    alone = KernelComparison(samples=4, kernels=2, differences=(wrong,), limit=2.0)
    assert alone.wrong == (wrong,)
    assert replace(alone, right_together=True).wrong == ()
    for db, is_right in ((138.0, True), (41.0, False)):
        output = OutputDifference(output="y", absolute=0.1, step=0.1, on_grid=False, sqnr_db=db)
        found = right_together(alone, OutputComparison("x.npy", 4, (output,)))
        assert found.right_together == is_right
    assert not right_together(alone, None).right_together


def difference(written, optimized, scale=None):
    sums = OutputSums()
    sums.add(np.array(written, np.float32), np.array(optimized, np.float32))
    return sums.difference("y", scale)


def test_steps_are_those_of_the_grid():
    found = difference([0.0, 1.0, 2.0], [0.0, 1.5, 2.0], scale=0.25)
    assert (found.absolute, found.steps, found.on_grid) == (0.5, 2.0, True)
    assert found.sqnr_db == pytest.approx(10 * math.log10(5 / 0.25))


def test_without_a_grid_steps_are_of_8_bits_over_the_range():
    found = difference([0.0, 255.0], [0.0, 252.0])
    assert (found.step, found.steps, found.on_grid) == (1.0, 3.0, False)


def test_the_same_numbers_have_no_difference_whatever_they_are():
    found = difference([math.nan, math.inf, -math.inf, 0.0], [math.nan, math.inf, -math.inf, 0.0])
    assert (found.absolute, found.steps, found.sqnr_db) == (0.0, 0.0, math.inf)


@each_case(
    "written, optimized",
    [
        ([1.0, 2.0], [1.0, math.nan]),
        ([1.0, 2.0], [1.0, math.inf]),
        ([[1.0], [2.0]], [[1.0, 1.0], [2.0, 2.0]]),
    ],
    ids=["nan", "inf", "a shape that would broadcast"],
)
def test_what_cannot_be_compared_is_an_infinite_difference(written, optimized):
    found = difference(written, optimized)
    assert (found.absolute, found.steps, found.sqnr_db) == (math.inf, math.inf, -math.inf)
    assert difference(1.0, 3.0, scale=1.0).steps == 2.0, "one number without axes is compared"


def test_nothing_to_compare_is_left_out():
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y, int64[M] i)
        { y = Relu(x) i = ArgMax<axis=0, keepdims=1>(x) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    found, samples = compare_optimized(model, [{"x": np.ones(3, np.float32)}] * 2, {}, threads=1)
    assert ([item.output for item in found], samples) == (["y"], 6)
