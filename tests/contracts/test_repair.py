"""A repaired file is proven exact in every form, and nothing but the constants of its weights has changed."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.core.errors import NotQuantizedError, UnlikeFloatError, UnrepairableError
from ptq_cli.repair.repair_document import Repair
from ptq_cli.repair.run_repair import RepairOptions, run_repair
from ptq_cli.setup.resolve import Request
from tests.contracts.byte_forms import SATURATING, Form, computed
from tests.each_case import each_case
from tests.unit.qdq.proof.test_portable_sums import sums_of


def repaired(model: onnx.ModelProto, folder: Path, floats: onnx.ModelProto | None = None) -> Repair:
    onnx.save(model, folder / "model.onnx")
    if floats is not None:
        onnx.save(floats, folder / "float.onnx")
    options = RepairOptions(
        output=folder / "repaired.onnx", float_model=folder / "float.onnx" if floats is not None else None
    )
    return run_repair(Request(settings={}), folder / "model.onnx", options)


def opened(folder: Path) -> onnx.ModelProto:
    return onnx.load(folder / "repaired.onnx", load_external_data=False)


def is_exact(model: onnx.ModelProto) -> bool:
    return not any(item.unsafe.pairs for item in sums_of(ir.from_proto(model)))


def changed(before: onnx.ModelProto, after: onnx.ModelProto) -> set[str]:
    """Names of the initializers that differ; all else must be the same bytes."""
    own, new = ({item.name: item for item in model.graph.initializer} for model in (before, after))
    assert list(own) == list(new)[: len(own)]
    differing = {name for name in own if own[name] != new[name]}
    for model in (before, after):
        for tensor in model.graph.initializer:
            if tensor.name in differing:
                tensor.ClearField("raw_data")
    assert before.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)
    return differing


@each_case("form", SATURATING, ids=lambda form: form.name)
def test_every_form_becomes_exact_and_stays_near(form: Form, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, form.weight, dtype=np.int8)
    made = form.make(weight, random.integers(0, 256, form.activations))
    before = computed(made.model, made.feeds)
    (output,) = made.model.graph.output
    output.CopyFrom(
        helper.make_tensor_value_info(output.name, output.type.tensor_type.elem_type, before.shape)
    )
    if form.name.startswith("MatMulInteger,"):  # What its sums are multiplied by is not known.
        with pytest.raises(UnrepairableError, match="its scale is not a constant for it"):
            repaired(made.model, tmp_path)
        return
    result = repaired(made.model, tmp_path)
    after = opened(tmp_path)
    assert result.verdict == "repaired" and is_exact(after)
    assert all(0 < item.largest_change < 64 and item.largest_factor > 1 for item in result.changed)
    # All constants of 1 are one initializer in these models: activations keep it.
    assert [node.name for node in after.graph.node] == [node.name for node in made.model.graph.node]
    if "Dynamic" not in form.name:
        assert values(after, "one") == 1
    found = computed(after, made.feeds)
    if found.dtype == np.float32 and "Conv" not in form.name:  # A Conv's outputs are differences of sums.
        assert np.abs(found - before).max() < 0.05 * np.abs(made.exact).max() + 0.05


def test_the_product_of_a_dynamic_layer_is_scaled_behind_it(tmp_path: Path) -> None:
    """As ``quantize_dynamic`` writes it."""
    before = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2, 12] x) => (float[2, 5] y) {
            q, s, z = DynamicQuantizeLinear(x)
            [layer] p = MatMulInteger(q, weight, z, wz)
            f = Cast<to = 1>(p)
            both = Mul(s, ws)
            y = Mul(f, both) }"""
    )
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (12, 5), dtype=np.int8)
    scales = random.uniform(0.01, 0.02, 5).astype(np.float32)
    for name, array in (("weight", weight), ("ws", scales), ("wz", np.zeros(5, np.int8))):
        before.graph.initializer.append(numpy_helper.from_array(array, name))
    repaired(before, tmp_path)
    after = opened(tmp_path)
    feeds = {"x": random.standard_normal((2, 12)).astype(np.float32)}
    assert np.abs(computed(after, feeds) - feeds["x"] @ (weight * scales)).max() < 0.3
    assert is_exact(after) and changed(before, after) == {"weight", "ws"}
    np.savez(tmp_path / "data.npz", **feeds)
    options = RepairOptions(output=tmp_path / "repaired.onnx")
    request = Request(settings={"data": str(tmp_path / "data.npz")})
    found = run_repair(request, tmp_path / "model.onnx", options).comparison
    assert found is not None and (found.biases, found.after_db > 20) == (0, True)


CONV = """<ir_version: 8, opset_import: ["": {opset}]>
    g (float[1, 4, 8, 8] x) => (float y) {{
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        [w] w = DequantizeLinear{axis}(weight, ws, wz)
        [b] b = DequantizeLinear{axis}(bias, bs, bz)
        [layer] c = Conv(d, w, b)
        r = QuantizeLinear(c, s, z)
        y = DequantizeLinear(r, s, z) }}"""


def conv(opset: int = 17, *, per_tensor: bool = False, zero: int = 0, seed: int = 0) -> onnx.ModelProto:
    """A Conv as ``quantize_static`` writes it."""
    random = np.random.default_rng(seed)
    model = onnx.parser.parse_model(CONV.format(opset=opset, axis="" if per_tensor else "<axis = 0>"))
    model.graph.output[0].type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for size in (1, 6, 6, 6):
        model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = size
    shape = () if per_tensor else (6,)
    scales = np.full(shape, 0.01, np.float32)
    constants = {
        "s": np.float32(0.05),
        "z": np.uint8(3),
        "weight": random.integers(-127, 128, (6, 4, 3, 3), dtype=np.int8),
        "ws": scales,
        "wz": np.full(shape, zero, np.int8),
        "bias": random.integers(-9999, 9999, 6, dtype=np.int32),
        "bs": (scales * np.float32(0.05)).astype(np.float32),
        "bz": np.zeros(shape, np.int32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    return model


def values(model: onnx.ModelProto, name: str) -> np.ndarray:
    return next(numpy_helper.to_array(item) for item in model.graph.initializer if item.name == name)


@pytest.mark.parametrize("opset", [13, 17, 23])
def test_weight_and_bias_change_with_their_scales_and_nothing_else(opset: int, tmp_path: Path) -> None:
    before = conv(opset)
    entry = before.metadata_props.add()
    entry.key, entry.value = "kept", "as it is"
    assert repaired(before, tmp_path).verdict == "repaired"
    after = opened(tmp_path)
    grown = values(after, "ws") / values(before, "ws")
    np.testing.assert_allclose(values(after, "bs") / values(before, "bs"), grown, rtol=1e-6)
    real = [values(model, "bias") * values(model, "bs").astype(np.float64) for model in (before, after)]
    np.testing.assert_allclose(*real, atol=values(after, "bs").max())
    assert is_exact(after)
    assert changed(before, after) == {"weight", "ws", "bias", "bs"}


def test_the_bias_of_a_transposed_convolution_keeps_the_scale_of_its_sums(tmp_path: Path) -> None:
    random, before = np.random.default_rng(0), conv()
    layer, weight = before.graph.node[4], before.graph.node[2]
    layer.op_type = "ConvTranspose"
    weight.attribute[0].i = 1
    stored = next(item for item in before.graph.initializer if item.name == "weight")
    stored.CopyFrom(
        numpy_helper.from_array(random.integers(-127, 128, (4, 6, 3, 3), dtype=np.int8), "weight")
    )
    for size, dim in zip((1, 6, 10, 10), before.graph.output[0].type.tensor_type.shape.dim, strict=True):
        dim.dim_value = size
    assert repaired(before, tmp_path).verdict == "repaired"
    after = opened(tmp_path)
    np.testing.assert_allclose(values(after, "bs"), values(after, "ws") * np.float32(0.05), rtol=1e-6)
    assert is_exact(after) and changed(before, after) == {"weight", "ws", "bias", "bs"}


@pytest.mark.parametrize("opset", [10, 21])
def test_one_scale_of_a_tensor_stays_one(opset: int, tmp_path: Path) -> None:
    before = conv(opset, per_tensor=True)
    repaired(before, tmp_path)
    after = opened(tmp_path)
    assert is_exact(after) and values(after, "ws").shape == ()
    assert changed(before, after) == {"weight", "ws", "bias", "bs"}


def test_a_zero_point_of_a_weight_becomes_zero(tmp_path: Path) -> None:
    before = conv(zero=9)
    repaired(before, tmp_path)
    after = opened(tmp_path)
    assert is_exact(after)
    real = [
        (values(model, "weight") - values(model, "wz").astype(int).reshape(-1, 1, 1, 1))
        * values(model, "ws").reshape(-1, 1, 1, 1)
        for model in (before, after)
    ]
    assert np.abs(real[0] - real[1]).mean() < 0.02


def test_a_safe_channel_stays_and_a_safe_file_is_copied(tmp_path: Path) -> None:
    before = conv()
    weight = values(before, "weight").copy()
    weight[2] = 64
    before.graph.initializer[2].CopyFrom(numpy_helper.from_array(weight, "weight"))
    repaired(before, tmp_path)
    after = opened(tmp_path)
    assert np.array_equal(values(after, "weight")[2], weight[2])
    assert values(after, "ws")[2] == values(before, "ws")[2]
    assert repaired(after, tmp_path).verdict == "exact"
    assert (tmp_path / "repaired.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()


def test_depthwise_weights_stay(tmp_path: Path) -> None:
    model = conv()
    model.graph.initializer[2].CopyFrom(
        numpy_helper.from_array(np.full((4, 1, 3, 3), 127, np.int8), "weight")
    )
    model.graph.node[4].attribute.append(helper.make_attribute("group", 4))
    for name, array in (("ws", np.full(4, 0.01, np.float32)), ("wz", np.zeros(4, np.int8))):
        next(i for i in model.graph.initializer if i.name == name).CopyFrom(
            numpy_helper.from_array(array, name)
        )
    for name in ("bias", "bs", "bz"):
        tensor = next(i for i in model.graph.initializer if i.name == name)
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:4].copy(), name))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    assert repaired(model, tmp_path).verdict == "exact"


def test_weights_of_the_float_model_are_rounded_once(tmp_path: Path) -> None:
    before = conv()
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, (6, 4, 3, 3))
    exact = ((values(before, "weight") + noise) * 0.01).astype(np.float32)
    float_model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1, 4, 8, 8] x) => (float[1, 6, 6, 6] y) {
            y = Conv(x, another_name) }"""
    )
    float_model.graph.initializer.append(numpy_helper.from_array(exact, "another_name"))
    errors = []
    for floats in (None, float_model):
        result = repaired(before, tmp_path, floats)
        after = opened(tmp_path)
        assert is_exact(after)
        assert {item.rounded_from for item in result.changed} == {"float model" if floats else "file"}
        real = values(after, "weight") * values(after, "ws").reshape(-1, 1, 1, 1)
        errors.append(np.square(real - exact).mean())
    assert errors[1] < 0.8 * errors[0]
    float_model.graph.initializer[0].CopyFrom(numpy_helper.from_array(exact + np.float32(1), "another_name"))
    earlier = (tmp_path / "repaired.onnx").read_bytes()
    with pytest.raises(UnlikeFloatError, match="none of the weights"):
        repaired(before, tmp_path, float_model)
    assert (tmp_path / "repaired.onnx").read_bytes() == earlier


def test_floats_behind_a_quantizer_move_only_where_they_round_otherwise(tmp_path: Path) -> None:
    """As an export of a module that was trained with fake quantization has them."""
    before = conv()
    floats = (values(before, "weight") * np.float32(0.01)).astype(np.float32)
    before.graph.initializer[2].CopyFrom(numpy_helper.from_array(floats, "weight"))
    before.graph.node.insert(2, helper.make_node("QuantizeLinear", ["weight", "ws", "wz"], ["wq"], axis=0))
    before.graph.node[3].input[0] = "wq"
    repaired(before, tmp_path)
    after = opened(tmp_path)
    assert is_exact(after)
    kept = values(after, "weight") == floats
    assert 0.05 < kept.mean() < 1
    assert np.abs(values(after, "weight") - floats).max() < 0.5


def test_layers_that_share_a_weight_share_the_new_one(tmp_path: Path) -> None:
    before = conv()
    second = helper.make_node("Conv", ["d", "w", "b"], ["c2"], "second")
    before.graph.node.insert(5, second)
    before.graph.node.insert(6, helper.make_node("Add", ["c", "c2"], ["sum"]))
    before.graph.node[7].input[0] = "sum"
    result = repaired(before, tmp_path)
    after = opened(tmp_path)
    assert [item.layers for item in result.changed] == [("layer", "second")] and is_exact(after)
    assert changed(before, after) == {"weight", "ws", "bias", "bs"}


def test_another_reader_of_a_weight_keeps_it(tmp_path: Path) -> None:
    before = conv()
    before.graph.node.append(
        helper.make_node("Cast", ["weight"], ["as_floats"], "other", to=TensorProto.FLOAT)
    )
    before.graph.output.append(helper.make_tensor_value_info("as_floats", TensorProto.FLOAT, [6, 4, 3, 3]))
    result = repaired(before, tmp_path)
    after = opened(tmp_path)
    assert result.copied == ("weight",) and is_exact(after)
    assert np.array_equal(values(after, "weight"), values(before, "weight"))
    assert after.graph.node[2].input[0] == "weight_repaired_0"


def test_constants_in_nodes_and_in_nested_graphs(tmp_path: Path) -> None:
    inner = conv()
    constants = [
        helper.make_node("Constant", [], [item.name], value=item) for item in inner.graph.initializer
    ]
    branch = helper.make_graph([*constants, *inner.graph.node], "branch", [], inner.graph.output)
    other = helper.make_graph(
        [
            helper.make_node(
                "Constant", [], ["o"], value=numpy_helper.from_array(np.zeros((1, 6, 6, 6), np.float32))
            )
        ],
        "other",
        [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, [1, 6, 6, 6])],
    )
    node = helper.make_node("If", ["which"], ["out"], "choice", then_branch=branch, else_branch=other)
    graph = helper.make_graph(
        [node],
        "g",
        [inner.graph.input[0], helper.make_tensor_value_info("which", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 6, 6, 6])],
    )
    model = helper.make_model(graph, opset_imports=inner.opset_import, ir_version=8)
    assert repaired(model, tmp_path).verdict == "repaired"
    assert is_exact(opened(tmp_path))


def test_external_data_stay_beside_the_file(tmp_path: Path) -> None:
    before, zero = conv(), np.uint8(3)
    onnx.save(before, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    data = (tmp_path / "m.bin").read_bytes()
    for folder, name in ((tmp_path, "r.onnx.data"), (tmp_path / "elsewhere", "m.bin")):
        run_repair(Request(settings={}), tmp_path / "m.onnx", RepairOptions(output=folder / "r.onnx"))
        assert len((folder / name).read_bytes()) == len(data)
        after = onnx.load(folder / "r.onnx")
        assert is_exact(after)
        assert np.array_equal(values(after, "z"), zero)
    assert (tmp_path / "m.bin").read_bytes() == data


def with_weight(array: np.ndarray | None) -> onnx.ModelProto:
    """A Conv whose weight has another type, or is computed from the input."""
    model = conv()
    if array is not None:
        model.graph.initializer[2].CopyFrom(numpy_helper.from_array(array, "weight"))
        return model
    for node in (
        helper.make_node("Slice", ["x", "starts", "ends"], ["part"]),
        helper.make_node("Expand", ["part", "sizes"], ["wide"]),
        helper.make_node("QuantizeLinear", ["wide", "ws", "wz"], ["computed"], axis=0),
    ):
        model.graph.node.insert(2, node)
    model.graph.node[5].input[0] = "computed"
    model.graph.node.sort(
        key=lambda node: ["Slice", "Expand"].index(node.op_type) if node.op_type in ("Slice", "Expand") else 2
    )
    for name, array in (("starts", [0, 0, 0, 0]), ("ends", [1, 4, 3, 3]), ("sizes", [6, 4, 3, 3])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(array, np.int64), name))
    return model


def test_what_cannot_be_repaired_is_refused(tmp_path: Path) -> None:
    plain = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Neg(x) }"""
    )
    with pytest.raises(NotQuantizedError, match="multiplies integers of 8 bits: nothing in it"):
        repaired(plain, tmp_path)
    only_weights = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 19]> g (float[1, 2] x) => (float[1, 2] y)
            <float s = {1}, int8[2, 2] w = {127, 127, 127, 127}> {
            d = DequantizeLinear(w, s) y = MatMul(x, d) }"""
    )
    with pytest.raises(NotQuantizedError, match="only weights, or other numbers"):
        repaired(only_weights, tmp_path)
    with pytest.raises(UnrepairableError, match="its weight is not constant: 'computed'"):
        repaired(with_weight(None), tmp_path)
    assert not (tmp_path / "repaired.onnx").exists()
