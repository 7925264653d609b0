"""ONNX files from outside: opset, checker, external data."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.core.errors import InvalidOnnxError, ModelFormatError
from ptq_cli.models.files.stored import read_model
from ptq_cli.models.loading.open_model import open_model
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.recipe.sections import ModelSettings
from tests.each_case import each_case
from tests.unit.models.contents import external, linear, noise, saved
from tests.unit.plan.graphs import run


def opened(path: Path):
    return open_model(path, ModelSettings())


def test_an_initializer_that_is_an_input_too_is_no_input(tmp_path):
    model = linear()
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 300]))
    assert opened(saved(model, tmp_path / "m.onnx")).input_names == ("x",)


def test_an_old_opset_is_refused(tmp_path):
    with pytest.raises(InvalidOnnxError) as caught:
        opened(saved(linear(6), tmp_path / "m.onnx"))
    assert caught.value.message == "model 'm.onnx' has opset 6, expected 7 or later"
    assert caught.value.code == "PTQ-MODEL-005"
    assert "onnx.version_converter" in caught.value.hint


@each_case("opset", range(7, 26))
def test_an_opset_from_7_to_25_is_taken(tmp_path, opset):
    source = opened(saved(linear(opset), tmp_path / "m.onnx"))
    model = prepare(source.to_onnx({}), "m.onnx")
    assert model.opset_imports[""] == max(opset, 13)
    np.testing.assert_allclose(run(model, {"x": noise(2, 4)})[0], noise(2, 4) @ noise(4, 300), atol=1e-5)


def test_a_model_that_the_checker_refuses(tmp_path):
    model = linear()
    model.graph.node[0].op_type = "MattMul"
    with pytest.raises(
        InvalidOnnxError, match=r"model 'm\.onnx' fails the ONNX checker: No Op registered for MattMul"
    ):
        opened(saved(model, tmp_path / "m.onnx"))


def test_shapes_that_contradict_are_refused(tmp_path):
    with pytest.raises(
        InvalidOnnxError, match=r"model 'm\.onnx' fails the ONNX checker: .*[Ii]ncompatible dimensions"
    ):
        opened(saved(linear(weight=noise(5, 300)), tmp_path / "m.onnx"))


@pytest.mark.parametrize("content", [b"\x08\x07" + b"\xff" * 40, b"\x08\x07"], ids=["garbage", "no_graph"])
def test_what_begins_like_onnx_and_is_none(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(
        ModelFormatError, match=r"model 'm\.onnx' (is not an ONNX file, or is damaged|holds no ONNX graph)"
    ):
        opened(path)


def test_a_folder_in_the_place_of_external_data_is_named(tmp_path):
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    (tmp_path / "weights.bin").mkdir()
    with pytest.raises(ModelFormatError, match=r"data file 'weights\.bin' of 'w' is a folder"):
        opened(path)


def test_missing_external_data_are_named(tmp_path):
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelFormatError) as caught:
        opened(path)
    assert caught.value.message == "model 'model.onnx': the data file 'weights.bin' of 'w' is missing"
    assert caught.value.hint == "put it next to the model"


@pytest.mark.parametrize(
    "location", ["../weights.bin", "{folder}/weights.bin", ""], ids=["parent", "absolute", "empty"]
)
def test_external_data_outside_the_folder_are_refused(tmp_path, location):
    (tmp_path / "weights.bin").write_bytes(bytes(4800))
    path = external(tmp_path / "model", location.format(folder=tmp_path))
    for read in (opened, read_model):
        with pytest.raises(ModelFormatError) as caught:
            read(path)
        assert "the data of 'w' lie outside its folder" in caught.value.message
        assert caught.value.code == "PTQ-MODEL-001"


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    path = external(tmp_path / "model")
    (tmp_path / "secret.bin").write_bytes(bytes(4800))
    (tmp_path / "model" / "weights.bin").unlink()
    (tmp_path / "model" / "weights.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelFormatError, match="the data of 'w' lie outside its folder"):
        opened(path)


def test_external_data_in_a_nested_graph_are_checked(tmp_path):
    inner = helper.make_tensor("k", TensorProto.FLOAT, [4, 300], bytes(4800), raw=True)
    onnx.external_data_helper.set_external_data(inner, "../weights.bin")
    inner.ClearField("raw_data")
    branch = helper.make_graph(
        [helper.make_node("Identity", ["k"], ["z"])],
        "b",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 300])],
        [inner],
    )
    model = linear()
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    with pytest.raises(ModelFormatError, match="the data of 'k' lie outside its folder"):
        opened(saved(model, tmp_path / "m.onnx"))


@pytest.mark.parametrize(("shape", "count"), [([], 3), ([1], 2)])
def test_a_constant_with_other_bytes_than_its_shape_says_is_refused(tmp_path, shape, count):
    model = linear()
    values = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=shape, raw_data=bytes(4 * count))
    model.graph.initializer.append(values)
    model.graph.node.append(helper.make_node("Add", ["x", "c"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 4]))
    with pytest.raises(InvalidOnnxError) as caught:
        opened(saved(model, tmp_path / "m.onnx"))
    assert caught.value.message == (
        f"model 'm.onnx': the constant 'c' of shape {shape} holds more or fewer values than that"
    )


def test_a_graph_without_an_output_is_refused(tmp_path: Path):
    model = linear()
    model.graph.ClearField("output")
    with pytest.raises(InvalidOnnxError, match="has no output"):
        opened(saved(model, tmp_path / "model.onnx"))


def test_a_negative_size_is_any_size(tmp_path: Path):
    model = linear()
    model.graph.node.insert(0, helper.make_node("Slice", ["z", "start", "end", "axis"], ["x"]))
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array([number], np.int64), name)
        for name, number in {"start": 1, "end": -1, "axis": 1}.items()
    )
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, [-1, -1]))
    source = opened(saved(model, tmp_path / "model.onnx"))
    assert [spec.shape for spec in source.example_specs] == [(None, None)]
    assert run(source.to_onnx({}), {"z": noise(2, 6)})[0].shape == (2, 300)


def test_a_negative_size_beside_external_data_is_no_reason_to_refuse(tmp_path: Path):
    path = external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    source = opened(saved(model, path))
    assert [spec.shape for spec in source.example_specs] == [(None, 4)]
    loaded = source.to_onnx({})
    assert run(loaded, {"x": noise(2, 4)})[0].shape == (2, 300)


def test_the_long_name_of_the_default_domain_is_taken(tmp_path):
    proto = linear(17)
    proto.opset_import[0].domain = proto.graph.node[0].domain = "ai.onnx"
    path = saved(proto, tmp_path / "m.onnx")
    model = prepare(opened(path).to_onnx({}), "m.onnx")
    assert dict(model.opset_imports) == {"": 17}
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert dict(read_model(path).load().opset_imports) == {"": 17}
