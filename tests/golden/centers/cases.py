"""Replay one recorded case of soft-to-hard quantization against ptq's centers."""

import numpy as np
import torch

from ptq_cli.quantizers.assign import assignment_probabilities, hard_assign, quantize_to_centers, soft_assign
from tests.golden.verdicts import Arrays, Case, NotCoveredError, compare, require

ON_PURPOSE: dict[str, str] = {}
RELATIVE = 1e-6
# How far off a value may be besides, where large terms cancel: relative to the terms. The first is how the
# recorded values themselves were rounded, which were computed in float64.
ROUNDING = {torch.float64: 1e-15, torch.float32: RELATIVE}


def replay(case: Case, arrays: Arrays) -> None:
    """Return if ours agrees with what was recorded, otherwise raise one of the verdicts."""
    if case["function"] != "soft_to_hard" or case["params"]["distance"] != "abs":
        raise NotCoveredError(case["function"])
    for dtype in ROUNDING:
        _replay(case, arrays, dtype)


def _replay(case: Case, arrays: Arrays, dtype: torch.dtype) -> None:
    temperature = case["params"]["temperature"]
    centers = torch.tensor(arrays[case["inputs"]["centers"]])
    w = torch.tensor(arrays[case["inputs"]["w"]], dtype=dtype, requires_grad=True)
    found = {
        "index": hard_assign(w, centers),
        "hard": centers[hard_assign(w, centers)],
        "straight_through": quantize_to_centers(w, centers, temperature),
        "soft": soft_assign(w, centers, temperature),
        "assignment": assignment_probabilities(w, centers, temperature),
    }
    upstream = torch.tensor(arrays[case["grad_outputs"]["straight_through"]], dtype=dtype)
    found["w"] = torch.autograd.grad(found["straight_through"], w, upstream)[0]
    found["w_unit"] = torch.autograd.grad(found["soft"].sum(), w)[0]
    largest = float(centers.abs().max())
    terms = {
        "soft": largest,
        "assignment": 1.0,
        "w": largest / temperature * float(upstream.abs().max()),
        "w_unit": largest / temperature,
    }
    for name, key in {**case["outputs"], **case["grads"]}.items():
        if name in terms:
            _compare_soft(name, found[name], arrays[key], ROUNDING[dtype] * terms[name])
        else:
            compare(name, found[name], arrays[key])


def _compare_soft(name: str, ours: torch.Tensor, recorded: np.ndarray, rounding: float) -> None:
    require(ours.shape == recorded.shape, f"{name} has shape {tuple(ours.shape)}")
    error = np.abs(ours.detach().double().numpy() - recorded)
    allowed = RELATIVE * np.abs(recorded) + rounding
    require((error <= allowed).all(), f"{np.count_nonzero(error > allowed)} values of {name} differ")
