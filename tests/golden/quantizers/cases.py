"""Replay one recorded case of NVIDIA's ``tensor_quant`` module against ptq's mirrors of its functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ptq_cli.core.errors import PtqError
from ptq_cli.quantizers.scaled.float8_quantize import scaled_e4m3
from ptq_cli.quantizers.scaled.tensor_quant import fake_affine_tensor_quant, fake_tensor_quant, tensor_quant
from ptq_cli.quantizers.scaled.tensor_quantizer import reduce_amax
from tests.golden.quantizers import descriptors
from tests.golden.verdicts import Arrays, Case, NotCoveredError, compare, kind_of, require

ON_PURPOSE = descriptors.ON_PURPOSE
MIRRORS = {
    "tensor_quant": tensor_quant,
    "fake_tensor_quant": fake_tensor_quant,
    "legacy_fake_tensor_quant": fake_tensor_quant,
}
OTHERS: dict[str, Callable[[Case, Arrays], None]] = {
    "fake_affine_tensor_quant": lambda case, arrays: _replay(case, arrays, fake_affine_tensor_quant),
    "scaled_e4m3": lambda case, arrays: _replay(case, arrays, _e4m3),
    "reduce_amax": lambda case, arrays: _replay(case, arrays, _reduce),
    "ScaledQuantDescriptor": descriptors.replay_descriptor,
    "descriptor_eq": descriptors.replay_equality,
    "predefined_descriptors": descriptors.replay_predefined,
}


def replay(case: Case, arrays: Arrays) -> None:
    """Return if ours agrees with what was recorded, otherwise raise one of the verdicts."""
    if case["function"] in MIRRORS:
        _replay(case, arrays, MIRRORS[case["function"]])
    elif case["function"] in OTHERS:
        OTHERS[case["function"]](case, arrays)
    else:
        raise NotCoveredError(case["function"])


def _e4m3(
    inputs: torch.Tensor,
    amax: Any,
    E: int,
    M: int,  # the reference's names
) -> torch.Tensor:
    return scaled_e4m3(inputs, amax if isinstance(amax, torch.Tensor) else None, E, M)


def _reduce(input: torch.Tensor, axis: Any, keepdims: bool) -> torch.Tensor:
    return reduce_amax(input, tuple(axis["tuple"]) if isinstance(axis, dict) else axis, keepdims)


def _replay(case: Case, arrays: Arrays, function: Callable[..., Any]) -> None:
    dtypes = case.get("dtypes", {})
    inputs = {
        name: torch.tensor(arrays[key]).to(getattr(torch, dtypes.get(name, "float32"))).requires_grad_()
        for name, key in case["inputs"].items()
    }
    before = {name: value.detach().clone() for name, value in inputs.items()}
    try:
        result = function(**{**case.get("params", {}), **inputs})
    except PtqError as error:
        require("raises" in case, f"ours raises {type(error).__name__}: {error.message}")
        require(isinstance(error, kind_of(case)), f"ours raises {type(error).__name__}")
        return
    require("raises" not in case, f"the reference raises {case.get('raises')}, ours does not")
    _check(case, arrays, inputs, result if isinstance(result, tuple) else (result,))
    for name, value in before.items():
        require(torch.equal(inputs[name].nan_to_num(), value.nan_to_num()), f"{name} was changed")


def _check(
    case: Case, arrays: Arrays, inputs: dict[str, torch.Tensor], results: tuple[torch.Tensor, ...]
) -> None:
    exact = case["function"] in MIRRORS
    for (name, key), found in zip(case["outputs"].items(), results, strict=True):
        compare_bits(name, found, arrays[key]) if exact else compare(name, found, arrays[key])
    if "grad_outputs" in case:
        upstream = torch.tensor(arrays[case["grad_outputs"]["outputs"]])
        results[0].backward(upstream.to(results[0].dtype))
        compare_bits("grad", inputs["inputs"].grad, arrays[case["grads"]["inputs"]])
    for name in case.get("grad_none", []):
        require(inputs[name].grad is None, f"{name} has a gradient")


def compare_bits(name: str, ours: torch.Tensor | None, recorded: np.ndarray) -> None:
    """Raise if one bit differs."""
    array = ours.detach().float().numpy() if ours is not None else np.zeros(0, np.float32)
    require(array.shape == recorded.shape, f"{name} has shape {array.shape}, recorded is {recorded.shape}")
    same = array.view(np.int32) == recorded.astype(np.float32).view(np.int32)
    require(same.all(), f"{np.count_nonzero(~same)} of {same.size} values of {name} differ")
