import pytest
import torch

from ptq_cli.core.errors import (
    AxisError,
    QuantizerShapeError,
    QuantizerTypeError,
    QuantizerValueError,
    UsageError,
)
from ptq_cli.quantizers.automatic_scale import AutoScale, nearest_power_of_two
from ptq_cli.quantizers.fixed_point import fixed_point, fixed_point_scale
from tests.each_case import each_case

INF, NAN = float("inf"), float("nan")
WEIGHT = torch.tensor([[0.9, -0.3, 0.02], [-1.7, 0.1, 0.05], [0.4, 0.25, -0.01], [1.1, -0.2, 0.03]])


def bits_of(x):
    return x.view(torch.int32)


def test_values_halves_and_edges():
    x = torch.tensor([0.125, 0.375, -0.125, -0.375, 5.0, -5.0, -1.0, 0.75])
    assert fixed_point(x, bits=3).tolist() == [0.0, 0.5, 0.0, -0.5, 0.75, -1.0, -1.0, 0.75]
    assert fixed_point(x, bits=3, symmetric=True).min() == -0.75
    assert fixed_point(x, bits=3, keep_negative=False).tolist() == [0.125, 0.375, 0, 0, 0.875, 0, 0, 0.75]


@each_case("integer", [-3, -1, 0, 2, 9])
def test_step_is_two_to_the_integer_minus_the_other_bits(integer):
    step = 2.0 ** (integer - 3)
    x = torch.arange(-8, 8) * step
    assert torch.equal(fixed_point(x, bits=4, integer=integer), x)
    assert fixed_point(torch.tensor(1e9), bits=4, integer=integer) == 7 * step


def test_one_bit_is_the_sign_whatever_integer_is():
    x = torch.tensor([-0.1, 0.0, -0.0, 3.0, NAN])
    found = fixed_point(x, bits=1, integer=2, alpha=0.5)
    assert found[:4].tolist() == [-0.5, 0.5, 0.5, 0.5]
    assert torch.isnan(found[4])


@pytest.mark.parametrize("alpha", ["auto", "auto_po2"])
def test_found_alpha_makes_nan_of_a_channel_that_is_not_finite(alpha):
    x = WEIGHT.clone()
    x[0, 0], x[1, 1] = INF, NAN
    found = fixed_point(x, bits=4, alpha=alpha)
    assert torch.isnan(found[:, :2]).all()
    assert torch.equal(found[:, 2], fixed_point(WEIGHT, bits=4, alpha=alpha)[:, 2])


def test_gradient_is_one_everywhere_and_alpha_has_none():
    alpha = torch.tensor([1.0, 2.0, 0.5], requires_grad=True)
    x = (WEIGHT * 10).requires_grad_()
    fixed_point(x, bits=2, alpha=alpha).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert alpha.grad is None


@each_case("factor", [0.0, 0.25, 1.0])
@each_case("use_ste", [True, False])
def test_noise_factor_goes_from_the_input_to_the_quantized_value(factor, use_ste):
    x = WEIGHT.clone().requires_grad_()
    quantized = fixed_point(WEIGHT, bits=3)
    found = fixed_point(x, bits=3, qnoise_factor=factor, use_ste=use_ste)
    found.sum().backward()
    torch.testing.assert_close(found.detach(), (1 - factor) * WEIGHT + factor * quantized)
    assert torch.equal(x.grad, torch.full_like(x, 1.0 if use_ste else 1 - factor))
    if factor < 1:
        assert fixed_point(torch.tensor(INF), bits=3, qnoise_factor=factor) == INF


def test_found_scale_uses_the_largest_integer_or_is_the_power_of_two_that_fits_best():
    scale = fixed_point_scale(WEIGHT, bits=4, alpha="auto")
    torch.testing.assert_close(scale, WEIGHT.abs().amax(0, keepdim=True) / 7 * 8)
    assert fixed_point_scale(WEIGHT.T.contiguous(), bits=4, alpha="auto", auto=AutoScale(axis=0)).shape == (
        3,
        1,
    )
    assert fixed_point_scale(WEIGHT, bits=4, alpha="auto", auto=AutoScale(axis=None)).shape == (1, 1)
    powers = fixed_point_scale(WEIGHT, bits=4, alpha="auto_po2")
    assert torch.equal(powers, fixed_point_scale(WEIGHT, bits=4, alpha="po2"))
    errors = [
        (fixed_point(WEIGHT, bits=4, alpha=powers * factor, symmetric=True) - WEIGHT).square().sum()
        for factor in (0.5, 2.0)
    ]
    best = (fixed_point(WEIGHT, bits=4, alpha="auto_po2") - WEIGHT).square().sum()
    assert best < min(errors)


def test_options_of_a_found_scale():
    bounded = AutoScale(min_po2_exponent=-3, max_po2_exponent=-2)
    step = fixed_point_scale(WEIGHT, bits=4, alpha="auto_po2", auto=bounded) / 8
    assert step.min() >= 0.125 and step.max() <= 0.25
    paired = AutoScale(axis=0, elements_per_scale=2)
    scale = fixed_point_scale(WEIGHT, bits=4, alpha="auto_po2", auto=paired)
    assert scale.shape == (4, 1) and scale[0] == scale[1] and scale[2] == scale[3]
    found = fixed_point_scale(WEIGHT, bits=4, alpha="auto_po2")
    again = fixed_point(WEIGHT * 2, bits=4, alpha="auto_po2", auto=AutoScale(frozen=found))
    assert torch.equal(again, fixed_point(WEIGHT * 2, bits=4, alpha="auto", auto=AutoScale(frozen=found)))
    assert again.abs().max() == 7 * float(found.max()) / 8


def test_nearest_power_of_two_on_both_sides_of_the_root_of_two():
    root = torch.tensor(2.0).sqrt()
    below = torch.nextafter(root, torch.tensor(0.0)) if root**2 > 2 else root
    above = torch.nextafter(below, torch.tensor(2.0))
    assert nearest_power_of_two(torch.stack([below, above])).tolist() == [1.0, 2.0]
    exponents = torch.arange(-23, 100)
    assert torch.equal(nearest_power_of_two(2.0**exponents * 1.3), 2.0**exponents)
    assert torch.isnan(nearest_power_of_two(torch.tensor([INF, NAN]))).all()


def test_stochastic_rounding_has_the_input_as_expectation_and_rests_in_evaluation():
    x = torch.tensor([0.3, -0.61, 0.25, 7.0]).expand(20_000, 4)
    options = {"bits": 3, "stochastic": True}
    found = fixed_point(x, **options, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found, fixed_point(x, **options, generator=torch.Generator().manual_seed(0)))
    assert found.unique().tolist() == [-0.75, -0.5, 0.25, 0.5, 0.75]
    torch.testing.assert_close(found.mean(0)[:3], x[0, :3], atol=0.005, rtol=0)
    assert (found[:, 2:] == torch.tensor([0.25, 0.75])).all()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert torch.equal(fixed_point(x, **options, training=False), fixed_point(x, bits=3))
    assert torch.equal(torch.get_rng_state(), before)


@each_case(
    "options, error, text",
    [
        ({"bits": 0}, QuantizerValueError, "0 bits is outside 1 to 16"),
        ({"bits": 17}, QuantizerValueError, "17 bits"),
        ({"bits": True}, QuantizerValueError, "True bits"),
        ({"integer": 121}, QuantizerValueError, "integer must be -110 to 120, got 121"),
        ({"integer": 0.5}, QuantizerValueError, "integer must be"),
        ({"alpha": "AUTO"}, QuantizerValueError, "unknown alpha 'AUTO'"),
        ({"alpha": "auto_po"}, QuantizerValueError, "did you mean 'auto_po2'?"),
        ({"alpha": INF}, QuantizerValueError, "alpha must be finite"),
        ({"alpha": "auto", "bits": 1}, QuantizerValueError, "needs 2 bits or more"),
        ({"alpha": torch.ones(2)}, QuantizerShapeError, r"alpha of shape \(2,\) does not broadcast"),
        ({"alpha": torch.ones(1, 4, 3)}, QuantizerShapeError, "does not broadcast"),
        ({"qnoise_factor": 1.5}, QuantizerValueError, "qnoise_factor must be 0 to 1"),
        ({"stochastic": True}, QuantizerTypeError, "needs a generator"),
        ({"auto": AutoScale(max_po2_exponent=0)}, QuantizerTypeError, "and this alpha is not"),
        (
            {"alpha": "auto", "auto": AutoScale(max_po2_exponent=0)},
            QuantizerTypeError,
            "only for alpha 'auto_po2'",
        ),
        ({"alpha": "auto", "auto": AutoScale(axis=2)}, AxisError, "axis 2 is outside"),
        (
            {"alpha": "auto_po2", "auto": AutoScale(elements_per_scale=2)},
            QuantizerShapeError,
            "elements_per_scale 2 does not divide the 3 elements",
        ),
        ({"alpha": "auto", "auto": AutoScale(frozen=torch.ones(5))}, QuantizerShapeError, "frozen of shape"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        fixed_point(WEIGHT, **options)


def test_options_that_contradict_themselves():
    with pytest.raises(QuantizerValueError, match="is above"):
        AutoScale(min_po2_exponent=1, max_po2_exponent=0)
    with pytest.raises(QuantizerValueError, match="must be positive"):
        AutoScale(axis=0, elements_per_scale=0)
    with pytest.raises(QuantizerTypeError, match="axis is None"):
        AutoScale(axis=None, elements_per_scale=2)
    with pytest.raises(UsageError, match="float tensor"):
        fixed_point(torch.ones(2, dtype=torch.int64))
    with pytest.raises(UsageError, match="float tensor"):
        fixed_point_scale(torch.ones(2, dtype=torch.int64))


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("alpha", [None, "auto_po2"])
def test_compiled_code_gives_the_same_bits(alpha):
    x = torch.cat(
        [torch.randn(1000, generator=torch.Generator().manual_seed(0)), torch.tensor([-0.0, -0.01])]
    )
    x = x.reshape(-1, 2)
    compiled = torch.compile(lambda x: fixed_point(x, 4, alpha=alpha), fullgraph=True)
    assert torch.equal(bits_of(compiled(x)), bits_of(fixed_point(x, 4, alpha=alpha)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    for alpha in (None, 0.5, torch.full((32,), 2.0), "auto", "auto_po2"):
        found = fixed_point(x.cuda(), 4, alpha=alpha)
        assert torch.equal(bits_of(found.cpu()), bits_of(fixed_point(x, 4, alpha=alpha)))
