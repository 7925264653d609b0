import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import moved_tensor


def test_a_scalar_stays_a_scalar():
    widened = moved_tensor(ir.tensor(np.float16(1.5)), lambda array: array.astype(np.float32), "offset")
    assert widened.shape == ()
    assert widened.numpy() == np.float32(1.5)
