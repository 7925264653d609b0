"""Batches of an evaluation are smaller where the scores of tokens are large."""

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import TensorSpec
from ptq_cli.pipeline.evaluation.evaluation_set import fitting_batch
from tests.each_case import each_case


@each_case(
    "shape, length, batch",
    [
        ([None, None, 49152], 128, 10),
        ([None, 128, 49152], None, 10),
        ([None, None, 400], 128, 32),
        ([None, None, 1 << 20], 4096, 1),
        ([None, 1 << 30], 128, 32),
        (None, 128, 32),
    ],
    ids=["free", "declared", "small", "huge", "table", "unknown"],
)
def test_scores_of_a_batch_are_bounded(shape, length, batch) -> None:
    dataset = SimpleNamespace(specs={"ids": TensorSpec("ids", np.dtype(np.int64), (None, length))})
    value = ir.Value(
        name="y", shape=None if shape is None else ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT)
    )
    model = ir.Model(ir.Graph([], [value], nodes=[]), ir_version=9)
    assert fitting_batch(dataset, model, 32) == batch
