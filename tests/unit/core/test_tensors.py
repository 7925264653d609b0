import numpy as np
import pytest

from ptq_cli.core.tensors import TensorSpec, format_shape


@pytest.mark.parametrize(("shape", "text"), [((), "[]"), ((3,), "[3]"), ((None, 3, None), "[?, 3, ?]")])
def test_shape(shape, text):
    assert format_shape(shape) == text


def test_spec():
    assert str(TensorSpec("tokens", np.dtype("int64"), (None, 16))) == "tokens: int64[?, 16]"
