"""What operators of ONNX Runtime compute: without its type, what reads such a result stays float.

What the model is traced and compared on: the data's first samples, or made-up ones of a known shape.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.core.errors import DataShapeError, ModelInputError, ParityError, UsageError
from ptq_cli.models.loading.source import ModelKind, SourceFile
from ptq_cli.models.loading.torch_sources import ModuleSource
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.recipe.sections import ImageSettings, ModelSettings
from ptq_cli.setup.float_model import FloatModel, know_foreign_types, make_float_model, open_source
from ptq_cli.setup.served_inputs import made_up_batches
from tests.unit.plan.graphs import build

TEXT = """(float[N,6,64] x) => (float[N,6,16] y) <float[64,64] w, float[64] g, float[64] b, float[64,16] v> {
    h = MatMul(x, w)
    s = com.microsoft.SkipLayerNormalization(x, h, g, b)
    y = MatMul(s, v) }"""


def test_what_reads_a_fused_operator_is_integer():
    model = build(TEXT)
    constants = {name: value.const_value for name, value in model.graph.initializers.items()}
    assert know_foreign_types(model) == 1
    value = model.graph.node("s").outputs[0]
    assert value.dtype == ir.DataType.FLOAT
    assert [size for size in value.shape or () if isinstance(size, int)] == [6, 64]
    assert {name: value.const_value for name, value in model.graph.initializers.items()} == constants
    assert [value.name for value in model.graph.inputs] == ["x"]
    layers = {layer.op: layer for layer in make_plan(prepare(model, "m.onnx"), load_target("ort-cpu")).layers}
    assert layers["MatMul"].quantized
    assert layers["SkipLayerNormalization"].reason == (
        "target ort-cpu has no rule for SkipLayerNormalization of domain com.microsoft: "
        "if ONNX Runtime's optimizer created it, quantize the model from before the optimization"
    )


def test_an_operator_that_nobody_knows_stays_unknown():
    model = build("(float[N,4] x) => (float[N,4] y) <float[4,4] w> { a = other.Thing(x)\n y = MatMul(a, w) }")
    assert know_foreign_types(model) == 0
    assert model.graph.node("a").outputs[0].type is None
    assert np.asarray(model.graph.initializers["w"].const_value.numpy()).shape == (4, 4)


Make = Callable[..., FloatModel]


class FixedBatch(torch.nn.Module):
    """Works for a batch of one alone, as models with a hard-coded reshape do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x.reshape(1, 4))
        return result


class Random(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2).eval()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def call(module: torch.nn.Module, array: np.ndarray | None = None, **shapes: Any) -> FloatModel:
        source = ModuleSource(SourceFile(tmp_path / "m.pt", ModelKind.CHECKPOINT, ""), module)
        dataset = None
        if array is not None:
            np.save(tmp_path / "x.npy", array)
            dataset = open_dataset(str(tmp_path / "x.npy"), ImageSettings())
        return make_float_model(source, dataset, threads=1, shapes=shapes)

    return call


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_batch_axis_is_dynamic_whatever_the_data_hold(make: Make, count: int) -> None:
    model = make(linear(), np.ones((count, 4), np.float32))
    assert [spec.shape for spec in model.inputs] == [(None, 4)]
    assert model.parity is not None and model.parity < 1e-5


def test_what_was_taken_of_a_checkpoint_is_among_the_notes(tmp_path: Path) -> None:
    file = SourceFile(tmp_path / "m.pt", ModelKind.CHECKPOINT, "")
    source = ModuleSource(file, linear(), notes=("the weights are those of 'ema' in 'm.pt'",))
    assert make_float_model(source, None, threads=1, shapes={"input": [2, 4]}).notes == source.notes


def test_a_shape_takes_the_place_of_data(make: Make) -> None:
    assert [str(spec) for spec in make(linear(), input=[2, 4]).inputs] == ["input: float32[?, 4]"]


def test_a_shape_may_stand_beside_data_that_agree(make: Make) -> None:
    make(linear(), np.ones((3, 4), np.float32), input=[1, 4])
    with pytest.raises(DataShapeError, match=r"input 'input' is \[\?, 4\] in .* says \[1, 5\]"):
        make(linear(), np.ones((3, 4), np.float32), input=[1, 5])


def test_a_model_for_one_sample_keeps_its_fixed_batch(make: Make) -> None:
    model = make(FixedBatch().eval(), np.ones((1, 4), np.float32))
    assert [spec.shape for spec in model.inputs] == [(1, 4)]


REFUSED: dict[str, tuple[dict[str, list[int]], str]] = {
    "no shape": ({}, r"the input shapes of 'm.pt' are not known \(input\)"),
    "of another name": ({"x": [1, 4]}, "--set model.input_shape does not name the input 'input'"),
    "one too many": (
        {"input": [1, 4], "inputs": [1]},
        r"'inputs', which is not an input \(did you mean 'input'\?\)",
    ),
    "that the model does not accept": ({"input": [1, 5]}, "'m.pt' does not accept"),
}


@pytest.mark.parametrize(("shapes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_shapes_that_do_not_fit(make: Make, shapes: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ModelInputError, match=message):
        make(linear(), **shapes)


def test_a_model_that_is_random_is_refused(make: Make) -> None:
    with pytest.raises(ParityError, match="differs from PyTorch's by"):
        make(Random().eval(), np.ones((2, 4), np.float32))


def test_no_model_was_named() -> None:
    with pytest.raises(UsageError, match="no model was given"):
        open_source(ModelSettings())


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
