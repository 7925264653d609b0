"""What ONNX Runtime reads of an exported weight is what the PyTorch quantizer computes, bit for bit."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.amax.choice import bits_before_point
from ptq_cli.core.arithmetic import parameters_from_range
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.quantizers.assign import quantize_to_centers
from ptq_cli.quantizers.automatic_scale import AutoScale
from ptq_cli.quantizers.dorefa import encode_dorefa
from ptq_cli.quantizers.fixed_point import fixed_point
from ptq_cli.quantizers.learning import learn_centers
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize
from ptq_cli.quantizers.step import step_quantize
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import WeightSettings
from ptq_cli.recover.quantized_layer import with_opset
from ptq_cli.runtime.engine_registry import count_kernels
from tests.contracts.plain_runtime import plain_session
from tests.each_case import each_case
from tests.placements import PLAIN_WEIGHTS, placed
from tests.quantized import quantize_model

AXES = {"conv": 0, "gemm": 0, "matmul": 1}


def float_model(opset: int = 20) -> onnx.ModelProto:
    """A Conv, a Gemm with a transposed weight and a MatMul, with ties, zeros and odd numbers of values."""
    random = np.random.default_rng(0)
    weights = {
        "conv": random.standard_normal((5, 3, 3, 3)).astype(np.float32),
        "gemm": random.standard_normal((7, 5)).astype(np.float32),
        "matmul": random.standard_normal((7, 3)).astype(np.float32),
    }
    weights["conv"][0] = np.rint(weights["conv"][0] * 4) / 8
    weights["conv"][1] = 0.0
    weights["gemm"][2] *= np.float32(1e-3)
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Conv", ["x", "conv", "bias"], ["a"], "conv"),
        helper.make_node("GlobalAveragePool", ["a"], ["b"], "pool"),
        helper.make_node("Flatten", ["b"], ["c"], "flatten"),
        helper.make_node("Gemm", ["c", "gemm"], ["d"], "gemm", transB=1),
        helper.make_node("MatMul", ["d", "matmul"], ["y"], "matmul"),
    ]
    constants = {**weights, "bias": np.float32([0.5, 0.0, -1.0, 2.0, 0.1])}
    graph = helper.make_graph(
        nodes,
        "three",
        [value("x", TensorProto.FLOAT, ["batch", 3, 6, 6])],
        [value("y", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


Weights = dict[str, np.ndarray]


def export(settings: WeightSettings) -> tuple[Weights, Weights, onnx.ModelProto]:
    """Return the float weights, what ONNX Runtime reads in their place, and the exported model."""
    model = prepare(ir.from_proto(float_model()), "test")
    floats = {name: np.array(model.graph.initializers[name].const_value.numpy()) for name in AXES}
    placement = placed(model, replace(Recipe(), weights=settings), str(PLAIN_WEIGHTS))
    model = with_opset(model, placement.opset, "test")
    parameters = decide_all(
        model,
        placement.plan,
        lambda site: parameters_from_range(-3.0, 4.0, site.format),
        lambda site: placement.quantizers[site],
    )
    assert not parameters.widened
    quantized = quantize_model(model, placement.plan, parameters)
    nodes = {node.name: node for node in quantized.graph}
    read = {name: nodes[name].inputs[1].name for name in AXES}
    proto = ir.to_proto(quantized)
    inspected = onnx.ModelProto.FromString(proto.SerializeToString())
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, floats[layer].shape)
        for layer, name in read.items()
    ]
    inspected.graph.output.extend(outputs)
    values = plain_session(inspected).run(list(read.values()), {"x": np.zeros((1, 3, 6, 6), np.float32)})
    return floats, dict(zip(read, values, strict=True)), proto


def assert_same_bits(found: np.ndarray, expected: torch.Tensor) -> None:
    assert found.shape == tuple(expected.shape)
    # -0.0 is no integer: what an integer 0 stands for is 0.0.
    np.testing.assert_array_equal(found.view(np.int32), (expected.numpy() + np.float32(0.0)).view(np.int32))


def amax_of(weight: np.ndarray, axis: int) -> torch.Tensor:
    return torch.tensor(np.moveaxis(np.abs(weight), axis, 0).reshape(weight.shape[axis], -1).max(1))


def channels(weight: np.ndarray, axis: int) -> list[torch.Tensor]:
    return list(torch.tensor(weight).unbind(axis))


@each_case("bits", range(2, 9))
def test_scaled(bits):
    floats, found, _ = export(WeightSettings(bits=bits))
    for name, axis in AXES.items():
        weight = floats[name]
        expected = fake_quantize(torch.tensor(weight), amax_of(weight, axis), bits=bits, axis=axis)
        assert_same_bits(found[name], expected)


@each_case("bits", range(2, 9))
def test_fixed_point_with_a_point_for_each_channel(bits):
    floats, found, _ = export(WeightSettings(quantizer="fixed_point", bits=bits))
    for name, axis in AXES.items():
        parts = []
        for channel in channels(floats[name], axis):
            integer = bits_before_point(max(float(channel.abs().max()), 2.0**-24))
            parts.append(fixed_point(channel, bits, integer))
        assert_same_bits(found[name], torch.stack(parts, axis))


@each_case("bits", range(2, 9))
def test_fixed_point_with_a_found_power_of_two(bits):
    floats, found, _ = export(WeightSettings(quantizer="fixed_point", bits=bits, alpha="auto_po2"))
    for name, axis in AXES.items():
        weight = torch.tensor(floats[name])
        expected = fixed_point(weight, bits, alpha="auto_po2", auto=AutoScale(axis=axis))
        assert_same_bits(found[name], expected)


@each_case("bits", range(2, 8))
def test_dorefa(bits):
    floats, found, _ = export(WeightSettings(quantizer="dorefa", bits=bits))
    for name, axis in AXES.items():
        weight = floats[name]
        amax = torch.clamp(amax_of(weight, axis).to(torch.float64), min=2.0**-24)
        scale = (amax / (2**bits - 1)).to(torch.float32)
        if name == "conv":  # The channel of zeros has no bias, and keeps the scale of next to nothing.
            assert float(np.abs(found[name][1]).max()) < 1e-7
        assert_same_bits(found[name], encode_dorefa(torch.tensor(weight), scale, bits, axis=axis).values())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_step(bits):
    floats, found, _ = export(WeightSettings(quantizer="step", bits=bits, step=0.1))
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    width = np.float32(0.1)
    for name in AXES:
        expected = step_quantize(torch.tensor(floats[name]), 0.1)
        assert_same_bits(found[name], torch.clamp(expected, float(low * width), float(high * width)))


@each_case("granularity", ["tensor", "channel"])
@each_case("count", [2, 16, 17])
def test_centers(count, granularity):
    settings = WeightSettings(quantizer="centers", centers=count, granularity=granularity)
    floats, found, _ = export(settings)
    for name, axis in AXES.items():
        weight, along = torch.tensor(floats[name]), axis if granularity == "channel" else None
        centers = learn_centers(weight, count, torch.Generator().manual_seed(0), axis=along)
        assert_same_bits(found[name], quantize_to_centers(weight, centers, axis=along))


def without_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with each DequantizeLinear reading the INT4 integers itself."""
    casts = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Cast"}
    bare = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = [node for node in bare.graph.node if node.op_type != "Cast"]
    for node in nodes:
        if node.op_type == "DequantizeLinear" and node.input[0] in casts:
            node.input[0] = casts[node.input[0]]
            del node.input[2]  # an int8 zero point of 0
    del bare.graph.node[:]
    bare.graph.node.extend(nodes)
    onnx.checker.check_model(bare)
    return bare


def test_four_bits_run_on_integer_kernels_because_a_cast_unpacks_them():
    _, _, model = export(WeightSettings(bits=4))
    unpacked = count_kernels(model.SerializeToString())
    bare = count_kernels(without_casts(model).SerializeToString())
    integers = {name: unpacked.integer[name] for name in ("Conv", "Gemm", "MatMul")}
    floats = {name: bare.floating[name] for name in ("Conv", "Gemm", "MatMul")}
    assert sum(integers.values()) == sum(floats.values()) == 3
    assert sum(unpacked.floating.values()) == 0
