"""What becomes float16, what stays float32, and where a Cast stands between them."""

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.models.files.stored import serialize
from ptq_cli.models.narrow_floats import narrow_floats
from ptq_cli.runtime.session import Session
from tests.each_case import each_case
from tests.unit.plan.graphs import build, sample

GRAPHS = {
    "plain": "(float[N,4] x) => (float[N,2] y) <float[4,2] w> { m = MatMul(x, w) y = Relu(m) }",
    "wide input": """(float[N,2,4,4] x) => (float[] y) <float[4] sizes> {
        a = Relu(x) r = Resize<mode="nearest">(a, , sizes) y = Neg(r) }""",
    "wide operator": """(float[N,4] x) => (float[] y) {
        a = Relu(x) d, s, z = DynamicQuantizeLinear(a) y = Mul(a, s) }""",
    "filled": "(float[N,4] x) => (float[] y) { n = Shape(x) c = ConstantOfShape(n) y = Add(c, x) }",
    "nested": """(float[N,4] x, bool c) => (float[] y) {
        y = If(c) <then_branch = t () => (float[] a) { a = Relu(x) },
        else_branch = e () => (float[] b) { b = Neg(x) }> }""",
}


@each_case("name", GRAPHS)
def test_it_computes_the_same_with_inputs_and_outputs_as_they_were(name: str) -> None:
    constants = {"sizes": np.float32([1, 1, 2, 2])} if "sizes" in GRAPHS[name] else None
    model = build(GRAPHS[name], constants=constants)
    inputs = sample(model)
    before = Session(serialize(model), threads=1).run(inputs)
    narrow_floats(model)
    content = serialize(model)
    onnx.checker.check_model(content.content, full_check=True)
    after = Session(content, threads=1).run(inputs)
    for one, other in zip(before, after, strict=True):
        assert one.dtype == other.dtype and np.abs(one - other).max() < 4e-3
    inferred = ir.from_proto(
        onnx.shape_inference.infer_shapes(onnx.load_from_string(content.content), strict_mode=True)
    )
    wide = {
        node.op_type
        for node in inferred.graph.all_nodes()
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT
    }
    allowed = {"Cast"} | ({"DynamicQuantizeLinear"} if name == "wide operator" else set())
    assert wide <= allowed


def test_constants_stay_finite_and_none_becomes_0() -> None:
    values = np.float32([-3.4e38, 1e-12, 0.0, 70000.0])
    model = build("(float[N,4] x) => (float[] y) <float[4] m> { y = Add(x, m) }", constants={"m": values})
    narrow_floats(model)
    [array] = [value.const_value.numpy() for value in model.graph.initializers.values()]
    assert array.dtype == np.float16 and np.isfinite(array).all()
    assert (array == 0).tolist() == [False, False, True, False]


def test_a_constant_with_readers_of_both_types_is_stored_twice() -> None:
    model = build(
        """(float[N,2,4,4] x) => (float[] y) <float[4] s> {
        r = Resize<mode="nearest">(x, , s) k = Mul(s, s) y = Mul(r, k) }""",
        constants={"s": np.float32([1, 1, 1, 1])},
    )
    narrow_floats(model)
    types = {name: value.const_value.dtype for name, value in model.graph.initializers.items()}
    assert types == {"s": ir.DataType.FLOAT, "s.float16": ir.DataType.FLOAT16}
    assert Session(serialize(model), threads=1).run(sample(model))[0].dtype == np.float32
