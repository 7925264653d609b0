import onnx_ir as ir
import pytest

from ptq_cli.core.errors import ModelInputError
from ptq_cli.pipeline.preparing.made_up_inputs import made_up_batches
from tests.unit.plan.graphs import build


def test_an_input_of_unknown_rank_is_refused():
    model: ir.Model = build("(float[N,4] x) => (float[N,4] y) { y = Neg(x) }")
    model.graph.inputs[0].shape = None
    with pytest.raises(ModelInputError, match="rank of input 'x' is not known"):
        made_up_batches(model, 1)
