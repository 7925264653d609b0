"""Weights of 4 bits need an opset that has them; the model is brought there, or it is said why not."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.opset import opset_of
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.pipeline.run_verify import run_verify
from ptq_cli.recover.quantized_layer import with_opset
from ptq_cli.setup.resolve import Request
from tests.graphs import parsed


def model(op: str, opset: int) -> ir.Model:
    return ir.from_proto(
        parsed(f"(float[batch,4] x) => (float[batch,4] y) {{ [node] y = {op}(x) }}", opset=opset)
    )


def test_nodes_and_values_keep_their_names() -> None:
    raised = with_opset(model("Relu", 13), 21, "m.onnx")
    assert raised.opset_imports[""] == 21
    assert [(node.name, node.outputs[0].name) for node in raised.graph] == [("node", "y")]
    onnx.checker.check_model(ir.to_proto(raised))


def test_a_newer_model_is_left_as_it_is() -> None:
    newer = model("Relu", 22)
    assert with_opset(newer, 21, "m.onnx") is newer


def test_what_the_converter_cannot_convert_is_refused() -> None:
    with pytest.raises(InvalidOnnxError, match="cannot be converted from opset 13 to 21") as found:
        with_opset(model("NoSuchOperator", 13), 21, "m.onnx")
    assert "which the target, 4-bit or 16-bit integers, or blocks need" in found.value.message
    assert "5 to 8 bits" in (found.value.hint or "")


def test_a_model_is_brought_to_the_opset_that_its_target_needs(run, request_with) -> None:
    table = 'name = "newer"\ndescription = "ort-cpu, of opset 22"\nextends = "ort-cpu"\nopset = 22\n'
    Path("newer.toml").write_text(table)
    run_calibrate(request_with(target="./newer.toml"), run)
    run_export(request_with(target="./newer.toml"), run)
    assert opset_of(ir.load(run.float_model)) == 20
    assert opset_of(ir.load(run.quantized_model)) == 22
    assert run_verify(Request(settings={}), run).target == "newer"
