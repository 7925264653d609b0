"""What the recorded vectors (``tests/golden/quantizers``) do not say about the mirrors."""

import pytest
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.scaled.tensor_quant import fake_tensor_quant, tensor_quant

MIRRORS = [tensor_quant, fake_tensor_quant]


def test_scale_is_the_reciprocal_of_onnx():
    outputs, scale = tensor_quant(torch.tensor([0.5]), torch.tensor(2.0))
    assert (outputs.item(), scale.item()) == (32.0, 63.5)


@pytest.mark.parametrize("mirror", MIRRORS)
def test_messages(mirror):
    with pytest.raises(QuantizerValueError, match="amax must not be negative, got -1"):
        mirror(torch.ones(2), torch.tensor([-1.0, 2.0]))
    with pytest.raises(QuantizerTypeError, match="an unsigned quantizer got negative values"):
        mirror(-torch.ones(2), torch.tensor(1.0), unsigned=True)
    with pytest.raises(
        QuantizerShapeError, match=r"amax of shape \(3,\) does not broadcast to a tensor of shape \(2,\)"
    ):
        mirror(torch.ones(2), torch.ones(3))
    with pytest.raises(QuantizerValueError, match="1 bits is outside"):
        mirror(torch.ones(2), torch.tensor(1.0), num_bits=1)


def test_scale_beyond_float16():
    with pytest.raises(QuantizerValueError, match=r"amax is too small for torch\.float16"):
        tensor_quant(torch.ones(2, dtype=torch.float16), torch.tensor(1e-4))
