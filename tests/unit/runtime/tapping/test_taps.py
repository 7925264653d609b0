import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

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


def test_operators_that_no_tap_needs_are_gone(arithmetic):
    model = ir.from_proto(arithmetic)

    assert operators(tap(model, ["sum"])) == ["Add"]
    assert operators(tap(model, ["product"])) == ["Add", "Sub", "Mul"]


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


def test_weights_that_no_tap_needs_are_gone(build_model):
    floats = (TensorProto.FLOAT, ["n", 3])
    model = build_model(
        [("Neg", ["x"], ["inner"]), ("Mul", ["inner", "w"], ["y"])],
        {"x": floats},
        {"y": floats},
        [numpy_helper.from_array(np.ones(3, np.float32), "w")],
    )

    assert not onnx.load_from_string(tap(ir.from_proto(model), ["inner"]).content).graph.initializer


def test_model_is_left_as_it_was(arithmetic):
    model = ir.from_proto(arithmetic)
    before = ir.to_proto(model).SerializeToString(deterministic=True)

    tap(model, ["sum"])

    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", ["nothing", "x"], ids=["unknown", "an input"])
def test_name_of_no_inner_tensor_is_an_error_of_the_caller(arithmetic, name):
    with pytest.raises(KeyError, match=name):
        tap(ir.from_proto(arithmetic), [name])


def test_batch_of_another_size_than_was_inferred_runs(arithmetic):
    for value in arithmetic.graph.input:
        value.type.tensor_type.shape.dim[0].ClearField("dim_param")
    del arithmetic.graph.output[0].type.tensor_type.shape.dim[:]
    arithmetic.graph.value_info.append(onnx.helper.make_tensor_value_info("sum", TensorProto.FLOAT, [7, 3]))

    (found,) = Session(tap(ir.from_proto(arithmetic), ["sum"])).run({"x": X, "y": Y})

    np.testing.assert_array_equal(found, X + Y)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.INT64], ids=["float16", "int64"])
def test_dtype_of_a_tapped_tensor_is_kept(build_model, kind):
    value = (kind, [2])
    model = build_model([("Identity", ["x"], ["a"]), ("Add", ["a", "a"], ["y"])], {"x": value}, {"y": value})
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)

    (found,) = Session(tap(inferred, ["a"])).run({"x": np.ones(2, dtype)})

    assert found.dtype == dtype


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
