"""Quantizers in PyTorch, with straight-through gradients.

A file or folder for each family. What may enter: a function from a float tensor and its parameters to
integers or to the fake-quantized tensor, and its gradient. Not how the parameters are chosen (``amax``),
nor where a quantizer sits in a model (``plan``).

The names in ``__all__`` are the library that docs/quantizers.md describes. Importing this package imports
nothing; the first use of a name imports its file, and with it PyTorch. Here ``fixed_point``
is the function, not its folder, and its round is not Python's.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptq_cli.quantizers.centers.assign import (
        assignment_probabilities,
        hard_assign,
        quantize_to_centers,
        soft_assign,
    )
    from ptq_cli.quantizers.centers.export import CenterIndices, encode_centers, pack_uint4
    from ptq_cli.quantizers.centers.learning import learn_centers
    from ptq_cli.quantizers.centers.module import CenterQuantizer
    from ptq_cli.quantizers.dorefa import (
        affine_k_bit_quantize,
        clamp_by_linear,
        k_bit_quantize,
        k_bit_quantize_forward,
    )
    from ptq_cli.quantizers.dorefa_export import DorefaLevels, encode_dorefa
    from ptq_cli.quantizers.fixed_point.export import (
        FixedPointIntegers,
        quantize_fixed_point,
        require_power_of_two,
    )
    from ptq_cli.quantizers.fixed_point.grid import FixedPointFormat
    from ptq_cli.quantizers.fixed_point.quantize import fixed_point, fixed_point_scale
    from ptq_cli.quantizers.fixed_point.scale import AutoScale
    from ptq_cli.quantizers.scaled.affine import fake_quantize_affine
    from ptq_cli.quantizers.scaled.descriptor import QuantDescriptor, ScaledQuantDescriptor
    from ptq_cli.quantizers.scaled.float8 import scaled_e4m3
    from ptq_cli.quantizers.scaled.learned_amax import learned_fake_quantize
    from ptq_cli.quantizers.scaled.predefined import (
        QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL,
        QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL,
        QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL,
        QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL,
        QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL,
        QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL,
        QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW,
        QUANT_DESC_8BIT_PER_TENSOR,
        QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR,
    )
    from ptq_cli.quantizers.scaled.quantize import fake_quantize, fake_quantize_to, quantize, quantize_to
    from ptq_cli.quantizers.scaled.reduce_amax import reduce_amax
    from ptq_cli.quantizers.scaled.tensor_quant import (
        fake_affine_tensor_quant,
        fake_tensor_quant,
        tensor_quant,
    )
    from ptq_cli.quantizers.scaled.tensor_quantizer import TensorQuantizer
    from ptq_cli.quantizers.step import multi_level_spike_count, step_quantize, step_quantize_forward
    from ptq_cli.quantizers.stochastic import round_through, stochastic_round
    from ptq_cli.quantizers.straight_through import (
        apply_straight_through,
        ceil,
        clamp,
        clamp_backward,
        floor,
        round,
        round_backward,
    )

__all__ = [
    "QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL",
    "QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL",
    "QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL",
    "QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL",
    "QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL",
    "QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL",
    "QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW",
    "QUANT_DESC_8BIT_PER_TENSOR",
    "QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR",
    "AutoScale",
    "CenterIndices",
    "CenterQuantizer",
    "DorefaLevels",
    "FixedPointFormat",
    "FixedPointIntegers",
    "QuantDescriptor",
    "ScaledQuantDescriptor",
    "TensorQuantizer",
    "affine_k_bit_quantize",
    "apply_straight_through",
    "assignment_probabilities",
    "ceil",
    "clamp",
    "clamp_backward",
    "clamp_by_linear",
    "encode_centers",
    "encode_dorefa",
    "fake_affine_tensor_quant",
    "fake_quantize",
    "fake_quantize_affine",
    "fake_quantize_to",
    "fake_tensor_quant",
    "fixed_point",
    "fixed_point_scale",
    "floor",
    "hard_assign",
    "k_bit_quantize",
    "k_bit_quantize_forward",
    "learn_centers",
    "learned_fake_quantize",
    "multi_level_spike_count",
    "pack_uint4",
    "quantize",
    "quantize_fixed_point",
    "quantize_to",
    "quantize_to_centers",
    "reduce_amax",
    "require_power_of_two",
    "round",
    "round_backward",
    "round_through",
    "scaled_e4m3",
    "soft_assign",
    "step_quantize",
    "step_quantize_forward",
    "stochastic_round",
    "tensor_quant",
]

_FILES = {
    "scaled.affine": ("fake_quantize_affine",),
    "centers.assign": ("assignment_probabilities", "hard_assign", "quantize_to_centers", "soft_assign"),
    "centers.export": ("CenterIndices", "encode_centers", "pack_uint4"),
    "centers.learning": ("learn_centers",),
    "centers.module": ("CenterQuantizer",),
    "scaled.descriptor": ("QuantDescriptor", "ScaledQuantDescriptor"),
    "dorefa": ("affine_k_bit_quantize", "clamp_by_linear", "k_bit_quantize", "k_bit_quantize_forward"),
    "dorefa_export": ("DorefaLevels", "encode_dorefa"),
    "fixed_point.quantize": ("fixed_point", "fixed_point_scale"),
    "fixed_point.export": ("FixedPointIntegers", "quantize_fixed_point", "require_power_of_two"),
    "fixed_point.grid": ("FixedPointFormat",),
    "fixed_point.scale": ("AutoScale",),
    "scaled.float8": ("scaled_e4m3",),
    "scaled.learned_amax": ("learned_fake_quantize",),
    "scaled.predefined": (
        "QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL",
        "QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL",
        "QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL",
        "QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL",
        "QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL",
        "QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL",
        "QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW",
        "QUANT_DESC_8BIT_PER_TENSOR",
        "QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR",
    ),
    "scaled.reduce_amax": ("reduce_amax",),
    "scaled.quantize": ("fake_quantize", "fake_quantize_to", "quantize", "quantize_to"),
    "step": ("multi_level_spike_count", "step_quantize", "step_quantize_forward"),
    "stochastic": ("round_through", "stochastic_round"),
    "straight_through": (
        "apply_straight_through",
        "ceil",
        "clamp",
        "clamp_backward",
        "floor",
        "round",
        "round_backward",
    ),
    "scaled.tensor_quant": ("fake_affine_tensor_quant", "fake_tensor_quant", "tensor_quant"),
    "scaled.tensor_quantizer": ("TensorQuantizer",),
}
_HOMES = {name: file for file, names in _FILES.items() for name in names}


class _Library(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # Importing a file would put it in the place of the function of the same name, now or later.
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


sys.modules[__name__].__class__ = _Library
