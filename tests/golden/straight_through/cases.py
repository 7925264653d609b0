"""Replay one recorded case of SpikingJelly's ``quantize`` module against ptq's straight-through functions.

Its classes (``round_atgf``, …) are the functions without their checks; ours are replayed by the functions.
"""

from collections.abc import Callable
from typing import Any

import torch

from ptq_cli.core.errors import PtqError
from ptq_cli.quantizers import dorefa, step, straight_through
from tests.golden.verdicts import Arrays, Case, NotCoveredError, OnPurposeError, compare, kind_of, require

ON_PURPOSE = {
    "k of 0 in the class": "theirs checks k in the function only, and then divides by 0; ours refuses it"
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "round": straight_through.round,
    "ceil": straight_through.ceil,
    "floor": straight_through.floor,
    "clamp": straight_through.clamp,
    "clamp_backward": straight_through.clamp_backward,
    "step_quantize": step.step_quantize,
    "step_quantize_forward": step.step_quantize_forward,
    "k_bit_quantize": dorefa.k_bit_quantize,
    "k_bit_quantize_forward": dorefa.k_bit_quantize_forward,
    "affine_k_bit_quantize": dorefa.affine_k_bit_quantize,
    "clamp_by_linear": dorefa.clamp_by_linear,
    "multi_level_spike_count": step.multi_level_spike_count,
}


def replay(case: Case, arrays: Arrays) -> None:
    """Return if ours agrees with what was recorded, otherwise raise one of the verdicts."""
    name = case["function"].removesuffix("_atgf")
    if name not in FUNCTIONS:
        raise NotCoveredError(case["function"])
    dtypes = case.get("dtypes", {})
    inputs = {
        key: torch.tensor(arrays[item]).to(getattr(torch, dtypes.get(key, "float32"))).requires_grad_()
        for key, item in case["inputs"].items()
    }
    try:
        found = FUNCTIONS[name](**inputs, **case["params"])
    except PtqError as error:
        if "k_zero_unchecked" in case["tags"]:
            raise OnPurposeError("k of 0 in the class") from error
        require("raises" in case, f"ours raises {type(error).__name__}: {error.message}")
        require(isinstance(error, kind_of(case)), f"ours raises {type(error).__name__}")
        return
    require("raises" not in case, f"the reference raises {case.get('raises')}, ours does not")
    compare("y", found, arrays[case["outputs"]["y"]])
    if "grads" in case:
        found.backward(torch.tensor(arrays[case["grad_outputs"]["y"]]).to(found.dtype))
        for key, item in case["grads"].items():
            compare(f"grad of {key}", inputs[key].grad, arrays[item])
