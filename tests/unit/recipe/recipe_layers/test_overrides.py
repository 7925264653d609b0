"""What overrides make of a small model, for the targets that can and those that cannot."""

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import RecipeValueError, TargetOverrideError
from ptq_cli.core.tensors import Array
from ptq_cli.models.pair_operators import clips_integers
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.fitted_grids import expose_clamps
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.recipe.assignments import settings_to_table
from ptq_cli.recipe.recipe_layers import merge_layers, table_layer
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recover.quantized_layer import with_opset
from ptq_cli.runtime.engine_registry import count_kernels
from tests.each_case import each_case
from tests.placements import placed
from tests.quantized import quantize_model
from tests.unit.plan.graphs import build, decided, ranges, run, sample, serialized, sqnr_db

NETWORK = """(float[N,3,8,8] x) => (float[] y)
<float[8,3,3,3] w1, float[8] b1, float[8,8,3,3] w2, int64[2] s = {0,-1}, float[128,16] w3, float[16] b3,
 float[16,8] w4> {
  [stem] c = Conv(x, w1, b1)
  [act] r = Relu(c)
  [body] d = Conv(r, w2)
  [flat] f = Reshape(d, s)
  [fc] g = Gemm(f, w3, b3)
  [head] y = MatMul(g, w4)
}"""


def recipe(tmp_path, **settings) -> Recipe:
    table = settings_to_table({"prefer": "size", **settings})
    return merge_layers([table_layer(table, tmp_path, "a test")])


def exported(tmp_path, target="ort-cpu", **settings) -> tuple[ir.Model, Placement, ir.Model]:
    model = build(NETWORK)
    placement = placed(model, recipe(tmp_path, **settings), target)
    found = ranges(model, placement.plan, [sample(model, seed) for seed in range(5)])

    def decide(site) -> QuantParameters:
        return decided(site, *found[site.source])

    grids = {site.source: decide(site) for site in placement.plan.activations.values()}
    plan = expose_clamps(model, placement.plan, placement.on_own_grid(grids))
    model = with_opset(model, placement.opset, "m.onnx")
    parameters = decide_all(model, plan, decide, placement.quantizers.__getitem__)
    return model, placement, quantize_model(model, plan, parameters)


def floats(placement: Placement) -> dict[str, str]:
    return {layer.name: layer.reason for layer in placement.plan.layers if not layer.quantized}


def error_db(model: ir.Model, result: ir.Model) -> float:
    inputs = sample(model, seed=9)
    plain, fast = (run(result, inputs, optimize=optimize)[0] for optimize in (False, True))
    assert sqnr_db(plain, fast) > 35.0
    return sqnr_db(run(model, inputs)[0], fast)


def stored(result: ir.Model, name: str) -> Array:
    return result.graph.initializers[name].const_value.numpy()


@each_case(
    "settings, integer",
    [
        ({}, "stem act body flat fc head"),
        ({"exclude": ["stem"]}, "body flat fc head"),
        ({"exclude": ["head"]}, "stem act body flat fc"),
        ({"exclude_op": ["Conv"]}, "flat fc head"),
        ({"exclude": ["fc"]}, "stem act body"),
        ({"exclude": ["fc", "flat"]}, "stem act body"),
        ({"exclude": ["body"]}, "stem act head"),
        ({"exclude": ["body", "act"]}, "stem act head"),
        ({"include_op": ["Conv"]}, "stem act body"),
        ({"include": ["stem", "body"], "exclude": ["stem"]}, "body"),
        ({"include_op": ["Conv"], "override": [{"match": "head", "quantize": True}]}, "stem act body"),
    ],
    ids=str,
)
def test_what_is_excluded_is_float_and_the_rest_integer(tmp_path, settings, integer):
    model, placement, result = exported(tmp_path, **settings)
    assert [layer.name for layer in placement.plan.layers if layer.quantized] == integer.split()
    kernels = count_kernels(serialized(result))
    assert kernels.integer["Conv"] == len({"stem", "body"} & set(integer.split()))
    assert sum(kernels.integer[op] for op in ("Gemm", "MatMul")) == len({"fc", "head"} & set(integer.split()))
    assert error_db(model, result) > 30.0


def test_a_float_layer_says_which_setting_keeps_it(tmp_path):
    _, placement, _ = exported(tmp_path, exclude=["stem"], include_op=["Conv"])
    assert floats(placement)["stem"] == "kept in float: exclude match = 'stem'"
    assert floats(placement)["fc"] == "kept in float: it is not one of the layers to include"


def test_the_tensors_that_are_measured_are_among_those_of_the_target_alone(tmp_path):
    for settings in ({"exclude": ["stem"]}, {"include": ["body"]}, {"exclude": ["flat"]}):
        _, placement, _ = exported(tmp_path, **settings)
        assert set(placement.plan.measured) <= set(placement.target_plan.measured)


@each_case(
    "settings, message",
    [
        ({"exclude": ["hed"]}, "exclude match = 'hed' matches no layer (did you mean 'head'?)"),
        ({"include_op": ["Gem"]}, "include op = 'Gem' matches no layer (did you mean 'Gemm'?)"),
        (
            {"override": [{"match": "bdy", "activations": {"dtype": "int16"}}]},
            "[[override]] match = 'bdy' matches no activation that is quantized (did you mean 'body'?)",
        ),
        (
            {"override": [{"op": "Conw", "weights": {"bits": 4}}]},
            "[[override]] op = 'Conw' matches no weight that is quantized (did you mean 'Conv'?)",
        ),
    ],
    ids=str,
)
def test_a_pattern_that_matches_nothing_is_an_error(tmp_path, settings, message):
    with pytest.raises(RecipeValueError) as caught:
        exported(tmp_path, **settings)
    assert caught.value.message == message


@pytest.mark.parametrize("which", [{"match": "stem"}, {"match": "act"}, {"match": "r"}], ids=str)
def test_the_result_behind_a_relu_goes_by_the_convolution_that_the_relu_is_part_of(tmp_path, which):
    _, placement, _ = exported(tmp_path, override=[{**which, "activations": {"dtype": "int8"}}])
    formats = {name: site.format.name for name, site in placement.plan.activations.items()}
    assert (formats["r"], formats["x"]) == ("int8", "uint8")


def test_activations_of_16_bits_are_computed_in_float_between_their_pairs(tmp_path):
    wide = {"match": "body", "activations": {"dtype": "int16"}}
    model, placement, result = exported(tmp_path, override=[wide])
    assert model.opset_imports[""] == 21
    assert stored(result, "d.zero_point").dtype == np.int16
    text = "its edges are uint8 and int16: target ort-cpu computes int16 in float"
    assert floats(placement)["body"] == text
    assert floats(placement)["flat"] == "its edges are int16: target ort-cpu computes int16 in float"
    assert count_kernels(serialized(result)).integer["Conv"] == 1
    assert error_db(model, result) > 30.0


@pytest.mark.parametrize("mixed", [True, False])
def test_a_target_says_whether_an_operator_may_have_integers_of_several_types(tmp_path, mixed):
    table = """name = "wide"
description = "16 bits"
extends = "ort-cpu"
[activation]
formats = ["int16"]
simulated = []
"""
    (tmp_path / "wide.toml").write_text(table + f"mixed = {str(mixed).lower()}\n")
    wide = {"match": "body", "activations": {"dtype": "int16"}}
    _, placement, _ = exported(tmp_path, override=[wide], target=str(tmp_path / "wide.toml"))
    found = {layer.name: layer.quantized for layer in placement.plan.layers}
    assert found["body"] == mixed, "it reads uint8 and makes int16"
    assert found["flat"], "it has int16 alone"


def test_all_of_them_in_16_bits_are_nearer_than_in_8(tmp_path):
    model, _, usual = exported(tmp_path)
    raised, placement, wide = exported(tmp_path, activation_dtype="int16")
    assert not any(layer.quantized for layer in placement.plan.layers)
    assert error_db(raised, wide) > error_db(model, usual) + 3.0


def test_int8_of_ort_cpu_is_integer_also_before_a_relu(tmp_path):
    model, placement, result = exported(tmp_path, activation_dtype="int8", activation_symmetric=True)
    assert {site.format.name for site in placement.plan.activations.values()} == {"int8"}
    kernels = count_kernels(serialized(result))
    assert (kernels.integer["Conv"], kernels.floating["Conv"]) == (2, 0)
    assert stored(result, "r.zero_point") == 0
    assert error_db(model, result) > 28.0


def test_activations_of_4_bits_are_integers_of_8_bits_for_the_kernels(tmp_path):
    model, placement, result = exported(tmp_path, activation_bits=4)
    assert {site.format.name for site in placement.plan.activations.values()} == {"uint4"}
    kernels = count_kernels(serialized(result))
    assert (kernels.integer["Conv"], kernels.floating["Conv"]) == (2, 0)
    far = {name: 8 * array for name, array in sample(model, seed=9).items()}
    made = [node.outputs[0] for node in result.graph if clips_integers(node)]
    assert len(made) == sum(node.op_type == "QuantizeLinear" for node in result.graph)
    assert 10.0 < error_db(model, result) < 25.0
    result.graph.outputs.extend(made)
    for optimize in (False, True):
        integers = run(result, far, optimize=optimize)[1:]
        assert {array.dtype.name for array in integers} == {"uint8"}
        assert [int(array.max()) for array in integers] == [15] * len(made)


def test_few_bits_of_one_layer_leave_the_others_their_8(tmp_path):
    override = [{"match": "body", "activations": {"bits": 3}}]
    _, placement, result = exported(tmp_path, override=override)
    formats = {name: site.format.name for name, site in placement.plan.activations.items()}
    assert (formats["d"], formats["r"]) == ("uint3", "uint8")
    kernels = count_kernels(serialized(result))
    assert (kernels.integer["Conv"], kernels.floating["Conv"]) == (2, 0)


def test_a_target_without_clips_of_integers_refuses_few_bits(tmp_path):
    with pytest.raises(TargetOverrideError, match="has activations of 8 bits, and 'x' asks for 4"):
        exported(tmp_path, target="generic", activation_bits=4)


def test_one_layer_of_another_type_is_in_float_and_says_so(tmp_path):
    _, placement, _ = exported(tmp_path, override=[{"match": "body", "activations": {"dtype": "int8"}}])
    text = "an integer kernel supports one type, so it is in float"
    found = floats(placement)
    assert found.keys() == {"body", "fc"}  # Between uint8 and int8; what reads int8 alone is integer.
    assert all(text in reason for reason in found.values())


BLOCKS = {"match": "fc", "weights": {"bits": 4, "block_size": 32}}


def test_blocks_of_4_bits_are_packed_and_computed_in_float(tmp_path):
    model, placement, result = exported(tmp_path, override=[BLOCKS])
    assert floats(placement)["fc"] == (
        "its weight is 4 bits in blocks of 32, which target ort-cpu computes in float"
    )
    integers = result.graph.initializers["w3.quantized"]
    assert (integers.dtype, tuple(integers.shape)) == (ir.DataType.INT4, (128, 16))
    assert stored(result, "w3.scale").shape == (4, 16)
    (node,) = (node for node in result.graph if node.name == "w3/DequantizeLinear")
    assert node.attributes.get_int("block_size") == 32
    assert error_db(model, result) > 15.0


def test_each_block_is_on_the_grid_of_its_own_scale(tmp_path):
    model, _, result = exported(tmp_path, override=[BLOCKS])
    weight = model.graph.initializers["w3"].const_value.numpy()
    integers = stored(result, "w3.quantized").astype(np.float32)
    scale = np.repeat(stored(result, "w3.scale"), 32, axis=0)
    assert np.max(np.abs(integers)) == 7
    assert np.all(np.abs(integers * scale - weight) <= scale / 2 + 1e-7)
    assert scale[0, 0] == np.float32(np.abs(weight[:32, 0]).max() / 7)


@each_case("layer, name, size, shape", [("body", "w2", 4, (8, 2, 3, 3)), ("head", "w4", 8, (2, 8))])
def test_blocks_divide_the_axis_of_the_input_channels(tmp_path, layer, name, size, shape):
    weights = {"bits": 4, "block_size": size}
    model, placement, result = exported(tmp_path, override=[{"match": layer, "weights": weights}])
    assert stored(result, f"{name}.scale").shape == shape
    assert layer in floats(placement)
    kernels = count_kernels(serialized(result))
    assert sum(kernels.integer.values()) == 3
    assert error_db(model, result) > 15.0


def test_blocks_that_do_not_divide_the_axis_are_refused(tmp_path):
    with pytest.raises(RecipeValueError, match=r"blocks of 3 do not divide axis 0 of 'w3', .* \(128, 16\)"):
        exported(tmp_path, override=[{"match": "fc", "weights": {"bits": 4, "block_size": 3}}])


def test_one_scale_for_a_whole_weight(tmp_path):
    model, _, result = exported(tmp_path, override=[{"op": "Conv", "weights": {"granularity": "tensor"}}])
    assert stored(result, "w1.scale").shape == stored(result, "w2.scale").shape == ()
    assert stored(result, "w3.scale").shape == (16,)
    assert count_kernels(serialized(result)).integer["Conv"] == 2
    assert error_db(model, result) > 28.0


CANNOT = {
    "uint8 for tensorrt": (
        "tensorrt",
        {"match": "act", "activations": {"dtype": "uint8"}},
        "target 'tensorrt' has activations of int8, float8e4m3fn, float4e2m1, and 'r' asks for uint8",
    ),
    "zero point for generic": (
        "generic",
        {"match": "body", "activations": {"symmetric": False}},
        "target 'generic' requires zero points of 0, but 'd' asks for others (symmetric = false)",
    ),
    "blocks for tensorrt": (
        "tensorrt",
        {"match": "fc", "weights": {"block_size": 32}},
        "target 'tensorrt' has no weights in blocks, but 'fc' asks for blocks of 32",
    ),
    "blocks of 8 bits": (
        "ort-cpu",
        {"match": "fc", "weights": {"block_size": 32}},
        "target 'ort-cpu' supports blocks for weights up to 4 bits, and 'fc' asks for scaled, 8 bits in "
        "blocks of 32",
    ),
}


@each_case("name", CANNOT)
def test_what_a_target_cannot_do_names_target_and_layer(tmp_path, name):
    target, override, message = CANNOT[name]
    with pytest.raises(TargetOverrideError) as caught:
        exported(tmp_path, target, override=[override])
    assert caught.value.message == message
    assert caught.value.code == "PTQ-PLAN-002"


def test_a_table_with_fewer_bits_allows_no_more(tmp_path):
    table = tmp_path / "seven.toml"
    table.write_text(
        "name = 'seven'\ndescription = 'd'\nextends = 'ort-cpu'\nweight.bits = 7\n", encoding="utf-8"
    )
    with pytest.raises(
        TargetOverrideError, match="target 'seven' supports weights of up to 7 bits, and 'fc' asks"
    ):
        exported(tmp_path, str(table), override=[{"match": "fc", "weights": {"bits": 8}}])


def test_overrides_of_flags_come_behind_those_of_a_recipe_each_once(tmp_path):
    below = table_layer(
        {"override": [{"match": "a", "amax": "mse"}, {"match": "b", "amax": "max"}]}, tmp_path, ""
    )
    flags = table_layer({"override": [{"match": "a", "amax": "mse"}]}, tmp_path, "")
    merged = merge_layers([below, dataclasses.replace(flags, adds=True)])
    assert [item.match for item in merged.override] == ["b", "a"]
    assert [item.match for item in merge_layers([below, flags]).override] == ["a"]
