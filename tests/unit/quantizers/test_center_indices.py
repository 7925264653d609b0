import pytest
import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.quantizers.assign import quantize_to_centers
from ptq_cli.quantizers.center_indices import encode_centers, pack_uint4
from tests.each_case import each_case
from tests.unit.quantizers.seeded import seeded


@each_case("count", [1, 2, 16, 17, 256])
@each_case("axis", [None, 0, 1, -1])
def test_indices_and_codebook_are_the_quantized_tensor(count, axis):
    x = seeded(4, 3, 5)
    centers = seeded(count, seed=1) if axis is None else seeded(x.shape[axis], count, seed=1)
    found = encode_centers(x, centers, axis=axis)
    assert torch.equal(found.values(), quantize_to_centers(x, centers, axis=axis))
    assert found.indices.dtype == torch.uint8 and found.indices.shape == x.shape
    assert found.bits == (4 if count <= 16 else 8)
    assert found.packed().numel() == (30 if count <= 16 else 60)
    assert found.axis == (None if axis is None else axis % 3)


def test_packing_puts_the_first_index_into_the_low_half():
    assert pack_uint4(torch.tensor([1, 2, 15, 0, 9], dtype=torch.uint8)).tolist() == [0x21, 0x0F, 0x09]
    assert pack_uint4(torch.zeros(0, dtype=torch.uint8)).shape == (0,)
    with pytest.raises(QuantizerValueError, match="16 does not fit"):
        pack_uint4(torch.tensor([16], dtype=torch.uint8))


def test_nan_has_no_index():
    with pytest.raises(QuantizerValueError, match="NaN"):
        encode_centers(torch.tensor([float("nan")]), torch.tensor([0.0]))
