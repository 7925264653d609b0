"""Every quantizer that the suite in ``test_quantizers.py`` runs over: add a line for a new one."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ptq_cli.core.formats import UINT8, IntegerFormat
from ptq_cli.quantizers import dorefa, step, straight_through
from ptq_cli.quantizers.assign import assignment_probabilities, quantize_to_centers
from ptq_cli.quantizers.automatic_scale import AutoScale
from ptq_cli.quantizers.center_indices import CenterQuantizer
from ptq_cli.quantizers.fixed_point import fixed_point
from ptq_cli.quantizers.scaled.descriptor import QuantDescriptor
from ptq_cli.quantizers.scaled.float8_quantize import scaled_e4m3
from ptq_cli.quantizers.scaled.scaled_quantize import (
    fake_quantize,
    fake_quantize_affine,
    learned_fake_quantize,
)
from ptq_cli.quantizers.scaled.tensor_quant import fake_affine_tensor_quant, fake_tensor_quant
from ptq_cli.quantizers.scaled.tensor_quantizer import TensorQuantizer
from ptq_cli.quantizers.step import round_through

Apply = Callable[..., torch.Tensor]
AXIS = 3  # How many channels the tensors have, on axis 1


@dataclass(frozen=True, kw_only=True)
class Family:
    """A quantizer as a function of one tensor.

    Attributes:
        name: of the test's case.
        apply: the quantizer; takes ``check=True`` if ``checks``.
        smooth: the function whose derivative its gradient is, wherever that has one.
        kinks: where it has none, in channel order if they differ.
        negative: it takes negative values.
        checks: it refuses NaN when asked to.
        same_in_half: compiled, float16 has the bits that it has in eager mode.
        only_floats: it refuses integers; otherwise it does with them what torch does.
        looks_at_values: it checks a parameter by its values, which takes a device that has them.
        by_itself: each value is quantized by itself; otherwise by what its channel holds, too.
        rounding: how far its gradient may be off; 0 where that is the upstream one or 0.
    """

    name: str
    apply: Apply
    smooth: Apply
    kinks: tuple[float, ...] = ()
    negative: bool = True
    checks: bool = False
    same_in_half: bool = True
    only_floats: bool = True
    looks_at_values: bool = True
    by_itself: bool = True
    rounding: float = 0.0


def identity(x: torch.Tensor) -> torch.Tensor:
    return x


def clamped(low: float, high: float) -> Apply:
    return lambda x: torch.clamp(x, low, high)


def clamped_channels(amax: torch.Tensor) -> Apply:
    return lambda x: torch.maximum(torch.minimum(x, amax), -amax)


def soft_form(centers: torch.Tensor, temperature: float, axis: int | None = None) -> Apply:
    """The mean of the centers, by the definition, of which quantizing to centers has the gradient."""

    def mean(x: torch.Tensor) -> torch.Tensor:
        own = centers.to(x.dtype)
        shares = assignment_probabilities(x, own, temperature, axis=axis)
        return (shares * (own if axis is None else own[:, None, :])).sum(-1)

    return mean


CHANNELS = torch.tensor([0.5, 1.0, 3.0])
BESIDE = CHANNELS.reshape(1, AXIS, 1)
EDGES = (-3.0, -1.0, -0.5, 0.5, 1.0, 3.0)
ONE = torch.tensor(1.0)
NARROW4 = IntegerFormat(4, signed=True, narrow_range=True)
FIXED = TensorQuantizer(QuantDescriptor(num_bits=4, axis=1, amax=[0.5, 1.0, 3.0], narrow_range=True))
UNEVEN = torch.tensor([2.5, -0.3, 0.1, -2.0, 0.9])
OWN = torch.tensor([[-1.0, 0.0, 1.0], [0.5, -0.5, 3.0], [0.2, 0.1, -2.0]])
LEARNED = CenterQuantizer(UNEVEN, temperature=1.0)

FAMILIES = [
    Family(
        name="scaled",
        apply=lambda x, **options: fake_quantize(x, ONE, bits=4, **options),
        smooth=clamped(-1, 1),
        kinks=(-1, 1),
        checks=True,
    ),
    Family(
        name="scaled_by_a_number",
        apply=lambda x, **options: fake_quantize(x, 1.3, narrow_range=False, **options),
        smooth=clamped(-1.3, 1.3),
        kinks=(-1.3, 1.3),
        checks=True,
    ),
    Family(
        name="scaled_unsigned",
        apply=lambda x, **options: fake_quantize(x, ONE, bits=3, unsigned=True, **options),
        smooth=clamped(0, 1),
        kinks=(0, 1),
        negative=False,
        checks=True,
    ),
    Family(
        name="scaled_per_axis",
        apply=lambda x, **options: fake_quantize(x, CHANNELS, axis=1, **options),
        smooth=clamped_channels(BESIDE),
        kinks=EDGES,
        checks=True,
    ),
    Family(
        name="affine",
        apply=lambda x, **options: fake_quantize_affine(x, 0.01, 100, UINT8, **options),
        smooth=clamped(-1.0, 1.55),
        kinks=(-1.0, 1.55),
        checks=True,
    ),
    Family(
        name="learned_amax",
        apply=lambda x: learned_fake_quantize(x, ONE, NARROW4),
        smooth=clamped(-1, 1),
        kinks=(-1, 1),
    ),
    Family(name="tensor_quantizer", apply=FIXED, smooth=clamped_channels(BESIDE), kinks=EDGES),
    Family(
        name="fake_tensor_quant",
        apply=lambda x, **options: fake_tensor_quant(x, ONE, 4, **options),
        smooth=clamped(-1, 1),
        kinks=(-1, 1),
        checks=True,
        same_in_half=False,
    ),
    Family(
        name="fake_tensor_quant_per_axis",
        apply=lambda x, **options: fake_tensor_quant(x, BESIDE, **options),
        smooth=clamped_channels(BESIDE),
        kinks=EDGES,
        checks=True,
        same_in_half=False,
    ),
    Family(
        name="fake_affine_tensor_quant",
        apply=lambda x, **options: fake_affine_tensor_quant(x, -ONE, 2 * ONE, 2, **options),
        smooth=clamped(-1, 2),
        kinks=(-1, 2),
        checks=True,
    ),
    Family(
        name="scaled_e4m3",
        apply=lambda x, **options: scaled_e4m3(x, ONE, **options),
        smooth=clamped(-1, 1),
        kinks=(-1, 1),
        checks=True,
    ),
    Family(
        name="fixed_point",
        apply=lambda x, **options: fixed_point(x, 4, 1, **options),
        smooth=identity,
        checks=True,
        looks_at_values=False,
    ),
    Family(
        name="fixed_point_without_negative_values",
        apply=lambda x, **options: fixed_point(x, 3, 2, keep_negative=False, **options),
        smooth=identity,
        checks=True,
        looks_at_values=False,
    ),
    Family(
        name="fixed_point_binary", apply=lambda x: fixed_point(x, 1), smooth=identity, looks_at_values=False
    ),
    Family(
        name="fixed_point_auto",
        apply=lambda x, **options: fixed_point(x, 4, alpha="auto", auto=AutoScale(axis=1), **options),
        smooth=identity,
        checks=True,
        looks_at_values=False,
        by_itself=False,
    ),
    Family(
        name="fixed_point_auto_po2",
        apply=lambda x, **options: fixed_point(x, 4, alpha="auto_po2", auto=AutoScale(axis=1), **options),
        smooth=identity,
        checks=True,
        looks_at_values=False,
        by_itself=False,
    ),
    Family(
        name="centers",
        apply=lambda x, **options: quantize_to_centers(x, UNEVEN, 0.5, **options),
        smooth=soft_form(UNEVEN, 0.5),
        kinks=tuple(UNEVEN.tolist()),
        checks=True,
        rounding=2e-5,
    ),
    Family(
        name="centers_per_axis",
        apply=lambda x, **options: quantize_to_centers(x, OWN, 0.3, axis=1, **options),
        smooth=soft_form(OWN, 0.3, axis=1),
        kinks=tuple(OWN.reshape(-1).tolist()),
        checks=True,
        rounding=2e-5,
    ),
    Family(
        name="center_quantizer",
        apply=LEARNED,
        smooth=soft_form(UNEVEN, 1.0),
        kinks=tuple(UNEVEN.tolist()),
        rounding=2e-5,
    ),
    Family(
        name="step_quantize",
        apply=lambda x: step.step_quantize(x, 0.25),
        smooth=identity,
        looks_at_values=False,
    ),
    Family(
        name="k_bit_quantize",
        apply=lambda x: dorefa.k_bit_quantize(x, 4),
        smooth=identity,
        looks_at_values=False,
    ),
    Family(
        name="multi_level_spike_count",
        apply=lambda x: step.multi_level_spike_count(x, 2),
        smooth=clamped(0, 2),
        kinks=(0, 2),
        looks_at_values=False,
    ),
    Family(
        name="round", apply=straight_through.round, smooth=identity, only_floats=False, looks_at_values=False
    ),
    Family(
        name="ceil", apply=straight_through.ceil, smooth=identity, only_floats=False, looks_at_values=False
    ),
    Family(
        name="floor", apply=straight_through.floor, smooth=identity, only_floats=False, looks_at_values=False
    ),
    Family(
        name="clamp",
        apply=lambda x: straight_through.clamp(x, -1.0, 2.0),
        smooth=clamped(-1, 2),
        kinks=(-1, 2),
        only_floats=False,
        looks_at_values=False,
    ),
    Family(name="round_through", apply=round_through, smooth=identity, looks_at_values=False),
]
