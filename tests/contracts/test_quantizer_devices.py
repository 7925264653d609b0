"""Parameters of quantizers follow the tensor's device; the meta device refuses a mixture as CUDA does."""

import pytest
import torch

from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.assign import quantize_to_centers, soft_assign
from ptq_cli.quantizers.fixed_point import fixed_point
from ptq_cli.quantizers.scaled.descriptor import QuantDescriptor
from ptq_cli.quantizers.scaled.float8_quantize import scaled_e4m3
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize, learned_fake_quantize
from ptq_cli.quantizers.scaled.tensor_quant import fake_affine_tensor_quant, fake_tensor_quant, tensor_quant
from ptq_cli.quantizers.scaled.tensor_quantizer import TensorQuantizer
from tests.each_case import each_case

META = torch.device("meta")
AMAX = torch.tensor([[1.0], [2.0]])
INT8 = IntegerFormat(8, signed=True, narrow_range=True)


def test_the_meta_device_refuses_a_mixture():
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(2, 3, device=META) * AMAX


QUANTIZERS = {
    "fake_quantize": lambda x: fake_quantize(x, AMAX[:, 0], axis=0),
    "scaled_e4m3": lambda x: scaled_e4m3(x, AMAX),
    "learned": lambda x: learned_fake_quantize(x, AMAX.clone().requires_grad_(), INT8),
    "tensor_quant": lambda x: tensor_quant(x, AMAX)[0],
    "tensor_quant_scale": lambda x: tensor_quant(x, AMAX)[1],
    "fake_tensor_quant": lambda x: fake_tensor_quant(x, AMAX),
    "fake_affine": lambda x: fake_affine_tensor_quant(x, -AMAX, AMAX),
    "fixed_point": lambda x: fixed_point(x, 4, alpha=AMAX),
    "soft_assign": lambda x: soft_assign(x, torch.tensor([0.0, 1.0])),
    "quantize_to_centers": lambda x: quantize_to_centers(x, torch.tensor([[0.0, 1.0]] * 2), axis=0),
}


@each_case("name", list(QUANTIZERS))
def test_parameters_follow_the_tensor(name, monkeypatch):
    # A scale without values cannot be looked at; a GPU's can.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert QUANTIZERS[name](torch.ones(2, 3, device=META)).device == META


@each_case("num_bits", [8, (4, 3)])
def test_a_calibrated_quantizer_keeps_its_amax_where_the_data_were(num_bits, monkeypatch):
    quantizer = TensorQuantizer(QuantDescriptor(num_bits=num_bits, axis=0))
    quantizer.state = "calibrating"
    quantizer(torch.tensor([[-0.7, 0.2], [1.0, 2.0]]))
    assert quantizer.decide_amax().amax.device.type == "cpu"
    assert quantizer(torch.ones(2, 3, device=META)).device == META
    monkeypatch.setattr(quantizer._calibrator, "update", lambda _x: None)  # It would count values.
    quantizer.state = "calibrating"
    quantizer(torch.ones(2, 3, device=META))
    assert quantizer.decide_amax().amax.device == META
