import pytest
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.dorefa import affine_k_bit_quantize, encode_dorefa
from tests.each_case import each_case


@each_case("k", range(1, 8))
def test_the_levels_are_those_of_the_affine_quantizer(k):
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(k))
    amax = torch.tensor(1.7)
    found = encode_dorefa(x, amax / (2**k - 1), k).values()
    position = (x.clamp(-amax, amax) + amax) / (2 * amax)
    expected = affine_k_bit_quantize(position, k, 2 * amax, -amax)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-6)
    assert len(found.unique()) == 2**k


def test_one_scale_for_each_index_along_an_axis():
    x = torch.tensor([[3.0, -3.0], [0.03, 0.01]])
    found = encode_dorefa(x, torch.tensor([1.0, 0.01]), 2, axis=0)
    assert found.table[found.indices.long()].tolist() == [[3, -3], [3, 1]]
    assert found.values().tolist() == [[3.0, -3.0], [pytest.approx(0.03), pytest.approx(0.01)]]


def test_infinities_saturate():
    x = torch.tensor([float("inf"), -float("inf")])
    assert encode_dorefa(x, torch.tensor(0.5), 3).values().tolist() == [3.5, -3.5]


@each_case(
    "x, scale, k, error",
    [
        (torch.ones(2), torch.tensor(1.0), 8, QuantizerValueError),
        (torch.ones(2), torch.tensor(1.0), 0, QuantizerValueError),
        (torch.ones(2), torch.tensor(0.0), 4, QuantizerValueError),
        (torch.ones(2), torch.tensor(float("inf")), 4, QuantizerValueError),
        (torch.tensor([float("nan")]), torch.tensor(1.0), 4, QuantizerValueError),
        (torch.ones(2, dtype=torch.int32), torch.tensor(1.0), 4, QuantizerTypeError),
        (torch.ones(2), torch.ones(3), 4, QuantizerShapeError),
    ],
)
def test_what_cannot_be_encoded_is_refused(x, scale, k, error):
    with pytest.raises(error):
        encode_dorefa(x, scale, k)
