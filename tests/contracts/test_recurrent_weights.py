"""Weights of recurrent layers: what is stored, which kernels run, how exact the results are, the size."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.analysis.tensor_rows import use_of
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.placement.placed_graph import place
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.stored_layers import parameter_count, stored_formats
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.qdq.read.constant_values import constant_values
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import WeightSettings
from ptq_cli.recover.quantized_layer import with_opset
from ptq_cli.runtime.engine_registry import count_kernels
from tests.contracts.ops.case import graph
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

SEQUENCE = "float[7,N,64] x"
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LEAST_DB = {"LSTM": 33.0, "GRU": 38.0, "RNN": 38.0}


def layer(op: str, hidden: int, directions: int = 1, more: str = "", inputs: str = "x, w, r, b") -> str:
    """The text of a graph with one layer; ``y`` has every step, ``h`` the last."""
    rows = GATES[op] * hidden
    constants = [
        f"float[{directions},{rows},64] w",
        f"float[{directions},{rows},{hidden}] r",
        f"float[{directions},{2 * rows}] b",
        *([f"float[{directions},{3 * hidden}] p"] if "p" in inputs.split(", ") else []),
    ]
    direction = "bidirectional" if directions == 2 else "forward"
    node = f'y, h = {op}<hidden_size={hidden}, direction="{direction}"{more}>({inputs})'
    return graph(SEQUENCE, ", ".join(constants), node, outputs="float[] y, float[] h")


def exported(text: str, target: str = "ort-cpu") -> tuple[ir.Model, ir.Model]:
    model = build(text)
    return model, quantized(model, make_plan(model, load_target(target)))


@each_case("target", ["ort-cpu", "generic"])
@each_case("directions", [1, 2])
@each_case("op", GATES)
def test_a_file_of_one_layer_has_a_quarter_of_the_bytes_and_nearly_its_results(op, directions, target):
    model, made = exported(layer(op, 96, directions), target)
    inputs, before, after = sample(model, 5), serialized(model), serialized(made)
    assert len(after) / len(before) < 0.30
    assert list(target_faults(made, load_target(target))) == []
    onnx.checker.check_model(ir.to_proto(made), full_check=True)
    assert parameter_count(made) == parameter_count(model)
    is_integer = target == "ort-cpu" and op == "LSTM"
    assert count_kernels(after).integer["LSTM"] == is_integer
    formats = stored_formats(made)["y"]
    assert (formats.activations, formats.weight) == ("uint8" if is_integer else "", "int8")
    for optimize in (True, False):
        for wanted, found in zip(run(before, inputs), run(after, inputs, optimize=optimize), strict=True):
            assert sqnr_db(wanted, found) > LEAST_DB[op]


@each_case(
    "more, inputs",
    [
        (", clip=0.5", "x, w, r, b"),
        (", input_forget=1", "x, w, r, b"),
        (", layout=0", "x, w, r"),
        (', activations=["Sigmoid", "Relu", "Tanh"]', "x, w, r, b"),
        ("", "x, w, r, b, lengths, start, cell"),
        ("", "x, w, r, b, , , , p"),
    ],
    ids=["clip", "input_forget", "layout", "activations", "states", "peepholes"],
)
def test_the_integer_lstm_has_every_input_and_attribute_of_the_float_one(more, inputs):
    text = layer("LSTM", 64, more=more, inputs=inputs)
    extra = ", int32[N] lengths, float[1,N,64] start, float[1,N,64] cell" if "lengths" in inputs else ""
    model = build(text.replace(SEQUENCE, SEQUENCE + extra))
    made = quantized(model)
    fed = sample(model, 3)
    if extra:
        fed["lengths"] = np.array([7, 1, 4, 7], np.int32)
    assert [node.op_type for node in made.graph] == ["DynamicQuantizeLSTM"]
    for wanted, found in zip(run(model, fed), run(made, fed), strict=True):
        assert sqnr_db(wanted, found) > LEAST_DB["LSTM"]


def test_the_kernel_is_for_weights_from_the_measured_size_on():
    # 4 * 64 * (64 + 64) are 32,768 in each direction.
    for hidden, kernel in ((63, "LSTM"), (64, "DynamicQuantizeLSTM")):
        _, made = exported(layer("LSTM", hidden, directions=2))
        assert [node.op_type for node in made.graph if node.op_type not in ("Cast", "Mul")] == [kernel]


def placed(text: str, target: str = "ort-cpu", **weights: Any) -> tuple[ir.Model, ir.Model]:
    """The float model and the one that a recipe with these ``[weights]`` makes."""
    model, rules = build(text), load_target(target)
    recipe = replace(tensor_recipe(Recipe()), weights=WeightSettings(**weights))
    plan = make_plan(model, rules)
    found = place(model, plan, rules, recipe)
    no_activations: dict[str, QuantParameters] = {}
    decided = decide_all(
        model, found.plan, lambda site: no_activations[site.tensor], found.quantizers.__getitem__
    )
    copy = with_opset(model.clone(), found.opset, "model")
    quantize_in_place(copy, found.plan, decided)
    return model, copy


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_each_direction_and_channel_has_a_scale_of_its_own(op):
    model, made = placed(layer(op, 64, directions=2))
    constants = TwinGraphs(model, made).constants
    assert [constant.tensor for constant in constants] == ["w", "r"]
    for constant in constants:
        weight = model.graph.initializers[constant.tensor].const_value.numpy()
        found = constant_values(TwinGraphs(model, made), constant)
        # With room for neighbors of one sign, where a kernel adds them in pairs.
        one, other = weight[..., 0::2], weight[..., 1::2]
        sums = np.where(one * other > 0, np.abs(one + other), 0).max(axis=2) if op == "LSTM" else 0
        wanted = np.maximum(np.abs(weight).max(axis=2) / 127, sums / 128)
        assert np.allclose(found.scale, wanted, rtol=1e-6)
        largest = np.rint(np.abs(weight).max(axis=2) / wanted).max() if op == "LSTM" else 127
        assert found.dtype == "int8" and np.abs(found.integers).max() == largest
        assert np.abs(found.values - weight).max() <= found.scale.max() / 2 * 1.001


@each_case(
    "weights, least_db, kernel",
    [
        ({"granularity": "tensor"}, 30.0, True),
        ({"bits": 4}, 10.0, True),
        ({"bits": 4, "block_size": 16}, 12.0, False),
        ({"quantizer": "centers", "centers": 16}, 12.0, False),
        ({"quantizer": "dorefa", "bits": 4}, 10.0, True),
        ({"quantizer": "fixed_point"}, 25.0, True),
        ({"quantizer": "step"}, 25.0, True),
    ],
    ids=["tensor", "4 bits", "blocks", "centers", "dorefa", "fixed_point", "step"],
)
@each_case("op", ["LSTM", "GRU"])
def test_every_quantizer_of_weights_is_stored_and_analyzed(op, weights, least_db, kernel):
    model, made = placed(layer(op, 64, directions=2), **weights)
    inputs = sample(model)
    assert (made.graph.node("y").op_type == "DynamicQuantizeLSTM") == (kernel and op == "LSTM")
    assert sqnr_db(run(model, inputs)[0], run(made, inputs)[0]) > least_db
    for constant in TwinGraphs(model, made).constants:
        found = constant_values(TwinGraphs(model, made), constant)
        assert sqnr_db(found.floats, found.values) > least_db
        assert use_of(found, 1).sqnr_db > least_db


TWO = graph(
    SEQUENCE,
    "float[1,{rows},64] w, float[1,{rows},64] r",
    "y = {op}<hidden_size=64>(x, w, r) z = {op}<hidden_size=64>(x, w, r)",
    outputs="float[] y, float[] z",
)


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_layers_that_share_weights_share_the_integers(op):
    model, made = exported(TWO.replace("{op}", op).replace("{rows}", str(64 * GATES[op])))
    assert len(serialized(made)) / len(serialized(model)) < 0.30
    stored = [value.name for value in made.graph.initializers.values() if value.dtype == ir.DataType.INT8]
    assert sum("quantized" in name for name in stored) == 2
    first, second = run(made, sample(model))
    assert np.array_equal(first, second)


def test_tensorrt_keeps_its_floats():
    plan = make_plan(build(layer("LSTM", 64)), load_target("tensorrt"), may_be_empty=True)
    assert plan.weights == () and "TensorRT computes recurrent layers in float" in plan.layers[0].reason


def test_eight_bits_break_the_rule_of_a_target_that_adds_products_in_16_bits():
    _, made = exported(layer("LSTM", 64))
    target = load_target("ort-cpu")
    assert list(target_faults(made, target)) == []
    (fault, other) = target_faults(made, replace(target, weight=replace(target.weight, bits=7)))
    assert fault.text == "'y': integers beyond ±64, for which 16-bit sums can overflow" == other.text
