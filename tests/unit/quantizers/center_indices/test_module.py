import pytest
import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.quantizers.assign import quantize_to_centers, soft_assign
from ptq_cli.quantizers.center_indices import CenterQuantizer
from tests.each_case import each_case
from tests.unit.quantizers.seeded import seeded

CENTERS = torch.tensor([-1.0, 0.0, 1.0])


def test_forward_and_soft_are_the_functions():
    x = seeded(4, 5)
    centers = seeded(5, 3, seed=1)
    quantizer = CenterQuantizer(centers, temperature=0.2, axis=1)
    assert torch.equal(quantizer(x), quantize_to_centers(x, centers, 0.2, axis=1))
    assert torch.equal(quantizer.soft(x), soft_assign(x, centers, 0.2, axis=1))
    assert torch.equal(quantizer.eval()(x), quantize_to_centers(x, centers, axis=1))
    assert "centers=5x3, temperature=0.2, axis=1" in repr(quantizer)


def test_state_dict_round_trip_in_a_model(tmp_path):
    model = torch.nn.Sequential(CenterQuantizer(CENTERS, temperature=0.2))
    other = torch.nn.Sequential(CenterQuantizer(torch.zeros(3)))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other[0].temperature == 0.2
    assert torch.equal(other[0].centers, CENTERS)


@each_case("state", [None, {}, {"temperature": "warm"}, {"temperature": -1.0}], ids=str)
def test_state_that_is_none(state):
    quantizer = CenterQuantizer(CENTERS, temperature=0.5)
    with pytest.raises(QuantizerValueError, match="temperature"):
        quantizer.set_extra_state(state)
    assert quantizer.temperature == 0.5


def test_centers_learn_by_gradient():
    x = torch.cat([seeded(500) * 0.1 - 3, seeded(500, seed=1) * 0.1 + 2])
    quantizer = CenterQuantizer(torch.tensor([-1.0, 1.0]), temperature=0.2)
    optimizer = torch.optim.SGD(quantizer.parameters(), lr=0.2)
    for _ in range(100):
        optimizer.zero_grad()
        (quantizer(x) - x).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(quantizer.centers.detach(), torch.tensor([-3.0, 2.0]), atol=0.05, rtol=0)


def test_what_is_refused():
    with pytest.raises(QuantizerValueError, match="temperature"):
        CenterQuantizer(CENTERS, temperature=0)
    with pytest.raises(QuantizerValueError, match="must be finite"):
        CenterQuantizer(torch.tensor([0.0, float("nan")]))


def test_from_tensor_starts_where_k_means_ends():
    x = torch.cat([seeded(500) * 0.1 - 3, seeded(500, seed=1) * 0.1 + 2])
    quantizer = CenterQuantizer.from_tensor(x, 2, torch.Generator().manual_seed(0), temperature=0.3)
    expected = torch.stack([x[:500].mean(), x[500:].mean()])
    torch.testing.assert_close(quantizer.centers.detach(), expected)
    assert quantizer.temperature == 0.3
