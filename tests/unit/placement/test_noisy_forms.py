"""A HardSwish is written in integers only where that adds little noise."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.core.arithmetic import QuantParameters, parameters_from_range
from ptq_cli.core.formats import UINT8
from ptq_cli.core.progress import silent
from ptq_cli.core.tensors import Array
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.placement.noisy_forms import MOST_NOISE, added_noise
from ptq_cli.qdq.write.integer_forms import clamped_sum, hard_swish
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, serialized


def grid(values: Array) -> QuantParameters:
    return parameters_from_range(min(float(values.min()), 0.0), max(float(values.max()), 0.0), UINT8)


def noise_of(x: Array, collector: HistogramCollector | MaxCollector) -> float:
    collector.update(x.astype(np.float32))
    return added_noise(collector.statistics(), grid(x), grid(hard_swish(x)))


@each_case("spread", [0.02, 0.3, 1.0, 3.0, 30.0])
@each_case(
    "shift, collector",
    [(0.0, HistogramCollector), (1.0, HistogramCollector), (-2.0, HistogramCollector), (0.0, MaxCollector)],
)
def test_values_around_zero_are_nearly_free(spread, shift, collector):
    x = spread * (np.random.default_rng(0).standard_normal(20_000) + shift)
    assert 0 <= noise_of(x, collector()) <= MOST_NOISE


def test_values_far_from_zero_in_a_small_part_of_the_grid_are_not():
    x = -1.4 + 0.003 * np.random.default_rng(0).uniform(-1, 1, 20_000)
    assert noise_of(x, HistogramCollector()) > 5 * MOST_NOISE


def test_the_noise_is_that_of_the_graph():
    model = build("(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[16,3,3,3] w, float[4,16,1,1] v> {"
                  " c = Conv(x, w) h = HardSwish(c) y = Conv(h, v) }")  # fmt: skip
    graph = quantized(model)
    [gate] = [node for node in graph.graph if node.name == "h/gate/QuantizeLinear"]
    x = gate.inputs[0].producer().inputs[0]
    pair = x.producer()
    scale, zero = (pair.inputs[index].const_value.numpy() for index in (1, 2))
    before = QuantParameters(scale, zero.astype(np.int64), UINT8)
    product = next(node for node in graph.graph if node.name == "h").outputs[0]
    for value in (x, product):
        graph.graph.outputs.append(value)
    inputs = {"x": np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32)}
    _, values, found = run(ir.from_proto(ir.to_proto(graph)), inputs, optimize=False)
    assert np.allclose(found, clamped_sum(values.astype(np.float64), before), atol=1e-5)


@pytest.mark.parametrize(("bias", "kept"), [(0.0, False), (-2.3, True)])
def test_an_export_keeps_a_noisy_one_in_float_between_its_pairs(tmp_path, bias, kept):
    weight = np.full((16, 3, 3, 3), 1e-3 if kept else 0.2, np.float32)
    model = build(
        "(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[16,3,3,3] w, float[16] b, float[4,16,1,1] v> {"
        " c = Conv(x, w, b) h = HardSwish(c) y = Conv(h, v) }",
        constants={"w": weight, "b": np.full(16, bias, np.float32)},
    )
    (tmp_path / "m.onnx").write_bytes(serialized(model))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(-1, 1, (16, 3, 8, 8)).astype(np.float32))
    run_dir = RunDirectory(tmp_path / "run")
    settings = {"data": str(tmp_path / "x.npy")}
    run_calibrate(Request(settings=settings, model=tmp_path / "m.onnx", folder=tmp_path), run_dir, silent)
    result = run_export(Request(settings={"prefer": "size"}, folder=tmp_path), run_dir)
    [layer] = [item for item in result.plan.layers if item.op == "HardSwish"]
    assert (layer.quantized, layer.between_pairs) == (not kept, kept)
    assert ("more than 1 dB" in layer.reason) == kept
    operators = [node.op_type for node in onnx.load(result.output).graph.node]
    assert ("HardSwish" in operators) == kept and operators.count("QuantizeLinear") >= 3
