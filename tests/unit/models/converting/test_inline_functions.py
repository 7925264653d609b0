import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.inlining import inline_functions

TEXT = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
g (float[N] x) => (float[N] y) { y = own.Call(x) }
<domain: "own", opset_import: ["" : 21, "own" : 1]>
Call (a) => (b) { b = Neg(a) }"""


def model(text: str = TEXT) -> ir.Model:
    return ir.from_proto(parser.parse_model(text))


def test_a_function_is_put_in_the_place_of_its_call():
    inlined = inline_functions(model())
    assert [node.op_type for node in inlined.graph] == ["Neg"]
    assert not inlined.functions
    onnx.checker.check_model(ir.to_proto(inlined))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TEXT.replace('"" : 21, "own" : 1]>\nCall', '"" : 20, "own" : 1]>\nCall'), "version 21 in the model"),
        (TEXT.replace("Neg(a)", "own.Call(a)"), "Cyclic"),
    ],
    ids=["another opset", "calls itself"],
)
def test_what_cannot_be_inlined_is_refused(text: str, says: str):
    with pytest.raises(InvalidOnnxError, match=says):
        inline_functions(model(text))
