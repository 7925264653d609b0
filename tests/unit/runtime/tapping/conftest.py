"""A model whose samples do not depend on one another, and batches for it."""

import numpy as np
import pytest
from onnx import TensorProto

from ptq_cli.calibdata.dataset.batches import Batch

FLOATS = (TensorProto.FLOAT, ["n", 4])


@pytest.fixture
def elementwise(build_model):
    return build_model([("Neg", ["x"], ["a"]), ("Abs", ["a"], ["b"])], {"x": FLOATS}, {"b": FLOATS})


def batch_of(size, shape=(4,)):
    array = np.random.default_rng(size).normal(size=(size, *shape)).astype(np.float32)
    return Batch({"x": array}, None, tuple(f"s{index}" for index in range(size)))
