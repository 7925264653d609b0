import onnx_ir as ir
import pytest

from ptq_cli.core.errors import ModelInputError
from ptq_cli.pipeline.setup.example_inputs import made_up_batches
from tests.unit.plan.graphs import build


def test_an_input_of_unknown_rank_is_refused():
    model: ir.Model = build("(float[N,4] x) => (float[N,4] y) { y = Neg(x) }")
    model.graph.inputs[0].shape = None
    with pytest.raises(ModelInputError, match="rank of input 'x' is not known"):
        made_up_batches(model, 1)


def test_caches_start_empty_and_masks_cover_them():
    model: ir.Model = build(
        "(int64[N,M] attention_mask, int64[N,T] input_ids, float[N,2,P,8] past_key,"
        " float[N,2,E,8] past_encoder_key) => (int64[N,T] y) { y = Identity(input_ids) }"
    )
    model.graph.inputs[0].shape = ir.Shape(["N", "P + T"])
    (batch,) = made_up_batches(model, 3)
    shapes = {name: array.shape for name, array in batch.items()}
    assert shapes["past_key"] == (3, 2, 0, 8)
    assert shapes["attention_mask"] == shapes["input_ids"] == (3, 128)
    assert shapes["past_encoder_key"] == (3, 2, 128, 8), "an encoder's keys are there from the first token on"
    (batch,) = made_up_batches(model, 3, shapes={"past_key": (3, 2, 5, 8), "input_ids": (3, 1)})
    assert batch["attention_mask"].shape == (3, 6)
