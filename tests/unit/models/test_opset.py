import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.opset import raise_opset


def model(op: str, opset: int, **attributes: object) -> ir.Model:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], "node", **attributes)],
        "one",
        [value("x", TensorProto.FLOAT, ["batch", 4])],
        [value("y", TensorProto.FLOAT, ["batch", 4])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return ir.from_proto(proto)


def test_nodes_and_values_keep_their_names():
    raised = raise_opset(model("Relu", 13), 21)
    assert raised.opset_imports[""] == 21
    assert [(node.name, node.outputs[0].name) for node in raised.graph] == [("node", "y")]
    onnx.checker.check_model(ir.to_proto(raised))


def test_a_newer_model_is_left_as_it_is():
    newer = model("Relu", 22)
    assert raise_opset(newer, 21) is newer


def test_what_the_converter_cannot_convert_is_refused():
    with pytest.raises(InvalidOnnxError, match="cannot be converted to 21") as found:
        raise_opset(model("NoSuchOperator", 13), 21)
    assert "5 bits" in (found.value.hint or "")
