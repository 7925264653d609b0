"""One suite over every quantizer: what a user may rely on whichever it is."""

import pytest
import torch

from ptq_cli.core.errors import QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.straight_through import VALUES_AT_ONCE
from tests.contracts.quantizer_families import AXIS, FAMILIES, Family
from tests.day import fewer
from tests.each_case import each_case

NAN, INF = float("nan"), float("inf")
HALVES = [torch.float16, torch.bfloat16]


def families(wanted):
    chosen = [pytest.param(family, id=family.name) for family in FAMILIES if wanted(family)]
    return each_case("family", chosen)


every_family = families(lambda _family: True)


def sample(family: Family, *shape: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2
    return x if family.negative else x.abs()


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    left, right = left.detach().float(), right.detach().float()
    return torch.equal(left.contiguous().view(torch.int32), right.contiguous().view(torch.int32))


def gradient_of(apply, x: torch.Tensor, upstream: torch.Tensor | None = None) -> torch.Tensor:
    leaf = x.detach().clone().requires_grad_()
    y = apply(leaf)
    (found,) = torch.autograd.grad(y, leaf, torch.ones_like(y) if upstream is None else upstream)
    return found


@every_family
def test_it_is_pure(family):
    x = sample(family, 4, AXIS, 50)
    before = x.clone()
    first = family.apply(x)
    kept = first.clone()
    second = family.apply(x)
    assert same_bits(x, before)
    assert same_bits(first, kept) and same_bits(second, kept)
    assert first.data_ptr() != x.data_ptr()


@every_family
def test_values_on_the_grid_stay(family):
    once = family.apply(sample(family, 5, AXIS, 40))
    assert torch.allclose(family.apply(once), once, rtol=1e-6, atol=0)


@every_family
def test_larger_inputs_never_give_smaller_outputs(family):
    line = torch.linspace(-4 if family.negative else 0, 4, 1001)
    found = family.apply(line.expand(2, AXIS, -1))
    assert torch.all(found[..., 1:] >= found[..., :-1])


@every_family
@each_case("dtype", [*HALVES, torch.float64], ids=str)
def test_other_dtypes_are_computed_in_float32(family, dtype):
    x = sample(family, 3, AXIS, 33).to(dtype)
    found = family.apply(x)
    wide = family.apply(x.float())
    assert found.dtype is dtype
    # A form that rounds its scale too may miss by the dtype's own rounding.
    tolerance = 0 if family.same_in_half else 2 * torch.finfo(dtype).eps
    assert torch.allclose(found.float(), wide.to(dtype).float(), rtol=tolerance, atol=0)
    assert gradient_of(family.apply, x).dtype is dtype


@every_family
@each_case("shape", [(0, AXIS, 4), (2, AXIS, 0), (1, AXIS, 1)], ids=str)
def test_small_shapes(family, shape):
    x = torch.ones(shape)
    assert family.apply(x).shape == shape
    assert gradient_of(family.apply, x).shape == shape


by_itself = families(lambda family: family.by_itself)


@by_itself
def test_layout_and_size_do_not_change_a_value(family):
    x = sample(family, 2, AXIS, VALUES_AT_ONCE // 4)
    expected = torch.cat([family.apply(row[None]) for row in x])
    layouts = {
        "larger than a block": x,
        "channels last": x.transpose(1, 2).contiguous().transpose(1, 2),
        "with gaps": torch.stack([x, x + 1], dim=-1)[..., 0],
    }
    for name, tensor in layouts.items():
        assert same_bits(family.apply(tensor), expected), name
        upstream = torch.ones_like(expected)
        assert same_bits(gradient_of(family.apply, tensor, upstream), gradient_of(family.apply, x)), name


@by_itself
def test_nan_propagates_and_gets_no_more_than_its_place(family):
    x = sample(family, 2, AXIS, 5)
    x[1, 0, 3] = NAN
    found = family.apply(x)
    assert torch.isnan(found).nonzero().tolist() == [[1, 0, 3]]


@families(lambda family: not family.by_itself)
def test_nan_propagates_within_its_channel(family):
    x = sample(family, 2, AXIS, 5)
    expected = family.apply(x)
    x[1, 0, 3] = NAN
    found = family.apply(x)
    assert torch.isnan(found[1, 0, 3])
    assert same_bits(found[:, 1:], expected[:, 1:])


@families(lambda family: family.checks)
def test_nan_is_refused_when_asked(family):
    x = sample(family, 2, AXIS, 5)
    assert same_bits(family.apply(x, check=True), family.apply(x))
    x[0, 1, 2] = NAN
    with pytest.raises(QuantizerValueError, match="NaN cannot be quantized; 1 of 30 values are NaN"):
        family.apply(x, check=True)


@families(lambda family: family.only_floats)
def test_integers_are_refused(family):
    with pytest.raises(TypeError, match=r"got torch\.int64") as caught:
        family.apply(torch.ones(2, AXIS, 2, dtype=torch.int64))
    assert isinstance(caught.value, QuantizerTypeError)


@every_family
def test_gradient_is_the_numerical_derivative_of_the_smooth_form(family):
    x = sample(family, 3, AXIS, 200)
    step = 1e-6
    away = torch.ones_like(x, dtype=torch.bool)
    for kink in family.kinks:
        away &= (x - kink).abs() > 1e-3
    wide = x.double()
    numeric = (family.smooth(wide + step) - family.smooth(wide - step)) / (2 * step)
    upstream = torch.linspace(-2, 2, x.numel()).reshape(x.shape)
    found = gradient_of(family.apply, x, upstream)
    assert away.float().mean() > 0.9
    tolerance = max(1e-8, family.rounding)
    assert torch.allclose(found[away].double(), (numeric * upstream)[away], rtol=1e-6, atol=tolerance)


def assert_compiles(family: Family, dtype: torch.dtype, backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(family.apply, fullgraph=True, backend=backend)
    x = sample(family, 5, AXIS, 13).to(dtype)
    x[0, 0, :3] = torch.tensor([0.0, -0.0, INF if family.by_itself else 3.0])
    found, expected = compiled(x), family.apply(x)
    if dtype is torch.float32 or family.same_in_half:
        assert same_bits(found, expected)
    else:
        assert torch.allclose(found.float(), expected.float(), rtol=2e-3, atol=0)
    slope, expected_slope = gradient_of(compiled, x), gradient_of(family.apply, x)
    # A compiler has an exponential of its own.
    allowed = max(family.rounding, 2 * torch.finfo(dtype).eps) if family.rounding else 0.0
    assert torch.allclose(slope.float(), expected_slope.float(), rtol=0, atol=allowed)
    assert same_bits(family.apply(x), expected)


@each_case("family", fewer(FAMILIES, 6), ids=lambda family: family.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, by torch
def test_as_one_graph_it_is_the_same(family):
    assert_compiles(family, torch.float32, "aot_eager")


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_quantizer_compiles_in_every_dtype(family, dtype):
    assert_compiles(family, dtype, "inductor")


@families(lambda family: not family.looks_at_values)
def test_it_runs_on_a_device_without_values(family):
    """Where no parameter is checked, nothing asks for a value; on the meta device there is none."""
    assert family.apply(torch.ones(2, AXIS, 4, device="meta")).shape == (2, AXIS, 4)
