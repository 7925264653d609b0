"""Replay one recorded case of NVIDIA's ``tensor_quant`` module against ptq's mirrors and quantizers."""

import math

import numpy as np
import torch

from ptq_cli.core.arithmetic import parameters_from_range
from ptq_cli.core.errors import PtqError, RecipeValueError, UsageError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.core.granularity import PerAxis, PerTensor
from ptq_cli.qdq.parameters import weight_amax
from ptq_cli.quantizers.scaled import fake_quantize_affine
from ptq_cli.quantizers.tensor_quant import fake_tensor_quant, tensor_quant
from tests.golden.verdicts import Arrays, Case, NotCoveredError, OnPurposeError, require

ON_PURPOSE = {
    "amax larger than the inputs": "theirs lets it enlarge the output, and fails later; ours refuses it",
    "range without 0": "ours is widened to hold 0, which every runtime asks for",
    "zero point between two integers": "min / step is a tie, and ours may take the other integer",
    "empty range": "theirs is NaN; ours has scale 1",
}
MIRRORS = {
    "tensor_quant": tensor_quant,
    "fake_tensor_quant": fake_tensor_quant,
    "legacy_fake_tensor_quant": fake_tensor_quant,
}
TIE = 1e-4
"""So near to a half, a zero point may be rounded to either side."""

ERRORS = {"ValueError": RecipeValueError, "TypeError": UsageError, "RuntimeError": UsageError}


def replay(case: Case, arrays: Arrays) -> None:
    """Return if ours agrees with what was recorded, otherwise raise one of the verdicts."""
    if case["function"] in MIRRORS:
        _mirror(case, arrays)
    elif case["function"] == "fake_affine_tensor_quant":
        _affine(case, arrays)
    elif case["function"] == "reduce_amax":
        _reduce(case, arrays)
    else:
        raise NotCoveredError(case["function"])


def _tensor(case: Case, arrays: Arrays, name: str) -> torch.Tensor:
    dtype = getattr(torch, case.get("dtypes", {}).get(name, "float32"))
    return torch.tensor(arrays[case["inputs"][name]]).to(dtype)


def _mirror(case: Case, arrays: Arrays) -> None:
    function = MIRRORS[case["function"]]
    inputs = _tensor(case, arrays, "inputs").requires_grad_()
    amax = _tensor(case, arrays, "amax").requires_grad_()
    try:
        result = function(inputs, amax, **case.get("params", {}))
    except PtqError as error:
        if "raises" not in case and amax.ndim > inputs.ndim:
            raise OnPurposeError("amax larger than the inputs") from error
        require("raises" in case, f"ours raises {type(error).__name__}: {error.message}")
        wanted = UsageError if amax.ndim > inputs.ndim else ERRORS[case["raises"]]
        require(type(error) is wanted, f"ours raises {type(error).__name__}, the reference {case['raises']}")
        return
    require("raises" not in case, f"the reference raises {case.get('raises')}, ours does not")
    found = dict(zip(("outputs", "scale"), result if isinstance(result, tuple) else (result,), strict=False))
    if "grad_outputs" in case:
        upstream = torch.tensor(arrays[case["grad_outputs"]["outputs"]])
        found["outputs"].backward(upstream.to(found["outputs"].dtype))
    for name, key in case.get("outputs", {}).items():
        _require_same_bits(name, found[name].detach(), arrays[key])
    if "grads" in case:
        _require_same_bits("grad", inputs.grad, arrays[case["grads"]["inputs"]])
    require(amax.grad is None, "amax has a gradient")


def _require_same_bits(name: str, ours: torch.Tensor | None, recorded: np.ndarray) -> None:
    array = ours.float().numpy() if ours is not None else np.zeros(0, np.float32)
    require(array.shape == recorded.shape, f"{name} has shape {array.shape}, recorded is {recorded.shape}")
    same = array.view(np.int32) == recorded.astype(np.float32).view(np.int32)
    require(same.all(), f"{np.count_nonzero(~same)} of {same.size} values of {name} differ")


def _affine(case: Case, arrays: Arrays) -> None:
    low, high = (float(arrays[case["inputs"][name]]) for name in ("min_range", "max_range"))
    if low == high:
        raise OnPurposeError("empty range")
    if not low <= 0 <= high:
        raise OnPurposeError("range without 0")
    inputs, recorded = _tensor(case, arrays, "inputs"), arrays[case["outputs"]["outputs"]]
    format = IntegerFormat(case["params"]["num_bits"], signed=True)
    parameters = parameters_from_range(low, high, format)
    zero_point = float(parameters.zero_point)
    found = fake_quantize_affine(inputs, float(parameters.scale), zero_point, format).float().numpy()
    # One step where the reciprocal falls on the other side of a tie; else the rounding of the product.
    error, step = np.abs(found - recorded), (high - low) / (2**format.bits - 1)
    if abs(low / step % 1 - 0.5) < TIE:
        require((error <= step * 1.001).all(), f"values differ by up to {error.max() / step:.2f} steps")
        raise OnPurposeError("zero point between two integers")
    near = error <= 1e-5 * np.maximum(np.abs(recorded), math.ulp(step) + step)
    require(
        (near | (error <= step * 1.001)).all() and np.count_nonzero(~near) <= max(1, 0.02 * near.size),
        f"{np.count_nonzero(~near)} of {near.size} values differ, by up to {error.max() / step:.2f} steps",
    )


def _reduce(case: Case, arrays: Arrays) -> None:
    value = arrays[case["inputs"]["input"]]
    axis = case["params"].get("axis")
    reduced = axis["tuple"] if isinstance(axis, dict) else axis
    if reduced is None:
        kept: list[int] = []
    else:
        axes = reduced if isinstance(reduced, list) else [reduced]
        if any(not -value.ndim <= item < value.ndim for item in axes):
            raise NotCoveredError("an axis that is not there")
        kept = sorted(set(range(value.ndim)) - {item % value.ndim for item in axes})
    if len(kept) > 1:
        raise NotCoveredError("an amax that keeps several axes")
    if "raises" in case:
        raise NotCoveredError("a reduction that is refused")
    found = weight_amax(value, PerAxis(kept[0]) if kept else PerTensor())
    recorded = arrays[case["outputs"]["output"]]
    require(np.array_equal(found.ravel(), recorded.ravel()), "the largest magnitudes differ")
