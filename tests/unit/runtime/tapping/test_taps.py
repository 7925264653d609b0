import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.full((2, 3), 2, np.float32)


def operators(model):
    return [node.op_type for node in onnx.load_from_string(model.content).graph.node]


@pytest.mark.parametrize(
    ("tensors", "wanted"),
    [
        (["sum"], [X + Y]),
        (["difference", "sum"], [X - Y, X + Y]),
        (["product", "sum"], [X * X - Y * Y, X + Y]),
        (["product"], [X * X - Y * Y]),
    ],
    ids=["inner", "order kept", "an output and an inner", "the output"],
)
def test_tapped_tensors_are_the_outputs_in_their_order(arithmetic, tensors, wanted):
    session = Session(tap(ir.from_proto(arithmetic), tensors))
    assert session.outputs == tuple(tensors)
    for found, expected in zip(session.run({"x": X, "y": Y}), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_operator_that_no_tap_needs_cannot_fail(build_model):
    floats, integers = (TensorProto.FLOAT, ["n", 3]), (TensorProto.INT64, ["k"])
    model = build_model(
        [("Neg", ["x"], ["inner"]), ("Gather", ["x", "index"], ["y"])],
        {"x": floats, "index": integers},
        {"y": (TensorProto.FLOAT, None)},
    )
    for optimize in (True, False):
        session = Session(tap(ir.from_proto(model), ["inner"]), optimize=optimize)
        # The input that only the Gather needs stays, so that a batch with it fits.
        (found,) = session.run({"x": X, "index": np.array([99])})
        np.testing.assert_array_equal(found, -X)


@pytest.mark.parametrize("name", ["nothing", "x"], ids=["unknown", "an input"])
def test_name_of_no_inner_tensor_is_an_error_of_the_caller(arithmetic, name):
    with pytest.raises(KeyError, match=name):
        tap(ir.from_proto(arithmetic), [name])


def test_subgraph_keeps_what_it_uses_from_outside():
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[3] x, bool c) => (float[3] y) {
      inner = Neg(x)
      unused = Abs(x)
      y = If (c) <
        then_branch = t () => (float[3] a) { a = Identity(inner) },
        else_branch = e () => (float[3] b) { b = Identity(x) }
      >
    }
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    content = tap(model, ["y"])
    assert operators(content) == ["Neg", "If"]
    (found,) = Session(content).run({"x": X[0], "c": np.array(True)})
    np.testing.assert_array_equal(found, -X[0])
