import pytest
import torch

from ptq_cli.core.errors import AxisError, QuantizerShapeError, QuantizerValueError, UsageError
from ptq_cli.quantizers import assign
from ptq_cli.quantizers.assign import assignment_probabilities, hard_assign, quantize_to_centers, soft_assign
from tests.each_case import each_case
from tests.unit.quantizers.seeded import seeded

INF, NAN = float("inf"), float("nan")
CENTERS = torch.tensor([1.0, -2.0, 0.5, 3.0, 3.0, -1.0])


def naive(x, centers, temperature, upstream):
    """The defining formula and its gradients, by autograd in float64."""
    x, centers = (value.double().detach().requires_grad_() for value in (x, centers))
    shares = torch.softmax(-(x[..., None] - centers).abs() / temperature, -1)
    soft = (shares * centers).sum(-1)
    soft.backward(upstream.double())
    return soft.detach(), x.grad, centers.grad


def close(found, expected, largest=None):
    """Near to float32's rounding, where terms cancel to that of the largest term."""
    largest = expected.abs().max() if largest is None else largest
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6 * max(float(largest), 1e-30))


def test_gradcheck_in_float64():
    x, centers = seeded(20).double().requires_grad_(), CENTERS[[0, 1, 2, 3, 5]].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, centers: soft_assign(x, centers, 0.4), (x, centers))
    by_axis = seeded(3, 4, 2).double().requires_grad_(), seeded(4, 5, seed=1).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, centers: soft_assign(x, centers, 0.4, axis=1), by_axis)


def test_nearest_is_that_of_real_numbers_where_float_distances_are_equal():
    tiny = 1e-9
    assert torch.tensor(1.0) - tiny == 1.0
    assert hard_assign(torch.tensor([tiny, 0.0, -tiny]), torch.tensor([-1.0, 1.0])).tolist() == [1, 0, 0]
    smallest = 2.0**-149
    centers = torch.tensor([0.0, smallest, 3 * smallest])
    assert hard_assign(centers, centers).tolist() == [0, 1, 2]
    assert hard_assign(torch.tensor([2 * smallest]), centers).tolist() == [1]
    huge = torch.tensor([1e38, 1.6e38])
    assert hard_assign(torch.tensor([1.29e38, 1.31e38]), huge).tolist() == [0, 1]


def test_infinities_saturate_and_nan_stays():
    x = torch.tensor([INF, -INF, NAN, 0.4], requires_grad=True)
    found = quantize_to_centers(x, CENTERS, 0.5)
    assert found[[0, 1, 3]].tolist() == [3.0, -2.0, 0.5]
    assert torch.isnan(found[2])
    found[[0, 1, 3]].sum().backward()
    assert x.grad[:2].tolist() == [0.0, 0.0]
    soft = soft_assign(x, CENTERS, 0.5)
    assert torch.isnan(soft[2])
    torch.testing.assert_close(soft[:2], soft_assign(torch.tensor([1e4, -1e4]), CENTERS, 0.5))
    torch.testing.assert_close(assignment_probabilities(x, CENTERS, 0.5)[0] @ CENTERS, soft[0])


@each_case("axis", [0, 1, 2, -1])
def test_by_axis_is_each_slice_by_itself(axis):
    x, upstream = seeded(4, 3, 5).requires_grad_(), seeded(4, 3, 5, seed=3)
    centers = seeded(x.shape[axis], 6, seed=1).requires_grad_()
    found = quantize_to_centers(x, centers, 0.3, axis=axis)
    found.backward(upstream)
    assert found.is_contiguous()
    index = hard_assign(x.detach(), centers.detach(), axis=axis)
    shares = assignment_probabilities(x.detach(), centers.detach(), 0.3, axis=axis)
    assert shares.shape == (*x.shape, 6)
    for row in range(x.shape[axis]):
        mine = x.detach().select(axis, row).clone().requires_grad_()
        own = centers.detach()[row].clone().requires_grad_()
        expected = quantize_to_centers(mine, own, 0.3)
        expected.backward(upstream.select(axis, row))
        assert torch.equal(found.select(axis, row), expected)
        torch.testing.assert_close(x.grad.select(axis, row), mine.grad)
        torch.testing.assert_close(centers.grad[row], own.grad)
        assert torch.equal(own[index.select(axis, row)], expected)
        torch.testing.assert_close(
            shares.select(axis % 3, row), assignment_probabilities(mine.detach(), own.detach(), 0.3)
        )


def test_pieces_give_what_the_whole_gives(monkeypatch):
    x, centers = seeded(6, 500).requires_grad_(), seeded(6, 16, seed=1).requires_grad_()

    def run():
        found = quantize_to_centers(x, centers, 0.2, axis=0)
        return found.detach(), *torch.autograd.grad(found.square().sum(), (x, centers))

    whole = run()
    index = hard_assign(x.detach(), centers.detach(), axis=0)
    monkeypatch.setattr(assign, "_PIECE", 70)
    monkeypatch.setattr(assign, "_TABLE", 2 * 16**2)
    pieces = run()
    assert torch.equal(whole[0], pieces[0]) and torch.equal(whole[1], pieces[1])
    torch.testing.assert_close(whole[2], pieces[2])
    assert torch.equal(hard_assign(x.detach(), centers.detach(), axis=0), index)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_tensors_without_elements(shape):
    x, own = torch.zeros(shape, requires_grad=True), CENTERS.clone().requires_grad_()
    quantize_to_centers(x, own).sum().backward()
    assert x.grad.shape == torch.Size(shape) and not own.grad.any()
    by_axis = torch.zeros(shape[0], 4)
    assert soft_assign(x, by_axis, axis=0).shape == torch.Size(shape)
    assert hard_assign(x, by_axis, axis=0).shape == torch.Size(shape)
    assert assignment_probabilities(x, by_axis, axis=0).shape == (*shape, 4)


@each_case(
    "centers, options, error, text",
    [
        (torch.zeros(0), {}, QuantizerValueError, "0 centers, expected 1 to 256"),
        (torch.arange(257.0), {}, QuantizerValueError, "257 centers"),
        (torch.tensor([0.0, NAN]), {}, QuantizerValueError, "must be finite"),
        (torch.tensor([0.0, INF]), {}, QuantizerValueError, "must be finite"),
        (torch.tensor([INF, INF]), {}, QuantizerValueError, "must be finite"),
        (torch.tensor([-3e38, 3e38]), {}, QuantizerValueError, "so must their distances"),
        (torch.tensor(1.0), {}, QuantizerShapeError, "have shape"),
        (torch.zeros(2, 3, 4), {}, QuantizerShapeError, "have shape"),
        (torch.zeros(2, 3), {}, QuantizerShapeError, r"have shape \(2, 3\), expected \('centers',\)"),
        (torch.zeros(4), {"axis": 0}, QuantizerShapeError, ", expected "),
        (torch.zeros(3, 4), {"axis": 0}, QuantizerShapeError, ", expected "),
        (torch.zeros(2, 4), {"axis": 2}, AxisError, "axis 2 is outside"),
        (torch.tensor([0, 1]), {}, UsageError, "float tensor"),
        (CENTERS, {"temperature": 0.0}, QuantizerValueError, "temperature must be positive"),
        (CENTERS, {"temperature": -1.0}, QuantizerValueError, "temperature must be positive"),
        (CENTERS, {"temperature": NAN}, QuantizerValueError, "temperature must be positive"),
        (CENTERS, {"temperature": INF}, QuantizerValueError, "temperature must be positive"),
        (CENTERS, {"temperature": 1e-40}, QuantizerValueError, "temperature must be positive"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_refused(centers, options, error, text):
    x = torch.zeros(2, 5)
    for function in (soft_assign, quantize_to_centers, assignment_probabilities):
        with pytest.raises(error, match=text):
            function(x, centers, **options)
    if "temperature" not in options:
        with pytest.raises(error, match=text):
            hard_assign(x, centers, **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    x, upstream = seeded(10_000), seeded(10_000, seed=1)
    mine, own = x.cuda().requires_grad_(), CENTERS.cuda().requires_grad_()
    found = quantize_to_centers(mine, own, 0.3)
    found.backward(upstream.cuda())
    assert torch.equal(found.cpu(), quantize_to_centers(x, CENTERS))
    _, of_x, of_centers = naive(x, CENTERS, 0.3, upstream)
    close(mine.grad.cpu(), of_x)
    close(own.grad.cpu(), of_centers)
