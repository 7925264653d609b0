"""NVIDIA's recorded results: what replaying does not say, and our own quantizers within one step of them."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from ptq_cli.core.arithmetic import parameters_from_range
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize, fake_quantize_affine
from tests.each_case import each_case
from tests.golden.quantizers.cases import MIRRORS

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["cases"]
ARRAYS = dict(np.load(FOLDER / "tensor_quant.npz", allow_pickle=False))


@dataclass(frozen=True)
class Replayed:
    """What a function gave for a case: outputs by name, and the gradients of inputs and amax."""

    outputs: dict[str, torch.Tensor]
    grad_inputs: torch.Tensor | None
    grad_amax: torch.Tensor | None


def tensor_of(case, name):
    dtype = getattr(torch, case.get("dtypes", {}).get(name, "float32"))
    return torch.tensor(ARRAYS[case["inputs"][name]]).to(dtype)


def replay(case, function) -> Replayed:
    """The one adapter between a recorded case and a function of inputs, amax and params."""
    inputs = tensor_of(case, "inputs").requires_grad_()
    amax = tensor_of(case, "amax").requires_grad_()
    result = function(inputs, amax, **case.get("params", {}))
    named = dict(zip(("outputs", "scale"), result if isinstance(result, tuple) else (result,), strict=False))
    if "grad_outputs" in case:
        upstream = torch.tensor(ARRAYS[case["grad_outputs"]["outputs"]])
        named["outputs"].backward(upstream.to(named["outputs"].dtype))
    return Replayed({name: value.detach() for name, value in named.items()}, inputs.grad, amax.grad)


def assert_same_bits(ours: torch.Tensor, recorded):
    array = ours.float().numpy()
    assert array.shape == recorded.shape
    np.testing.assert_array_equal(array.view(np.int32), recorded.view(np.int32))


def select(wanted):
    return [pytest.param(case, id=case["id"]) for case in CASES if wanted(case)]


@pytest.mark.parametrize("function", MIRRORS)
def test_mirror_keeps_the_recorded_dtype(function):
    for case in CASES:
        if case["function"] == function and "raises" not in case:
            for name, value in replay(case, MIRRORS[function]).outputs.items():
                assert value.dtype == getattr(torch, case.get("dtypes", {}).get(name, "float32")), case["id"]


@pytest.mark.parametrize("case", select(lambda case: "printed_outputs" in case.get("values", {})))
def test_mirror_gives_what_the_documentation_prints(case):
    replayed = replay(case, MIRRORS[case["function"]])
    np.testing.assert_allclose(replayed.outputs["outputs"], case["values"]["printed_outputs"], atol=5e-5)


def axis_of(case):
    """``(axis,)`` or ``(None,)`` where the recorded amax is one that our quantizer takes, otherwise None."""
    shape, rank = ARRAYS[case["inputs"]["amax"]].shape, ARRAYS[case["inputs"]["inputs"]].ndim
    kept = [index - len(shape) for index, size in enumerate(shape) if size > 1]
    if len(kept) > 1 or (shape == (1,) and rank == 1):
        return None
    return (kept[0],) if kept else (None,)


def comparable(case):
    odd = {"nonfinite_input", "grad_amax_as_float16", "scale_overflow"}
    return (
        case["function"] == "fake_tensor_quant"
        and "raises" not in case
        and not odd & set(case["tags"])
        and axis_of(case) is not None
    )


@each_case("case", select(comparable))
def test_scaled_quantizer_follows_the_reference(case):
    (axis,) = axis_of(case)

    def ours(inputs, amax, num_bits=8, unsigned=False, narrow_range=True):
        flat = amax.reshape(()) if axis is None else amax.reshape(-1)
        return fake_quantize(
            inputs, flat, bits=num_bits, unsigned=unsigned, narrow_range=narrow_range, axis=axis
        )

    replayed = replay(case, ours)
    recorded = ARRAYS[case["outputs"]["outputs"]]
    params = {"num_bits": 8, "unsigned": False, **case.get("params", {})}
    step = ARRAYS[case["inputs"]["amax"]] / (2.0 ** (params["num_bits"] - 1 + params["unsigned"]) - 1)
    error = np.abs(replayed.outputs["outputs"].float().numpy() - recorded)
    # One step where the reciprocal falls on the other side of a tie; else the rounding of the product.
    ulp = 2.0**-10 if "float16" in case["tags"] else 2.0**-22
    on_grid = error <= ulp * np.abs(recorded)
    assert np.all(on_grid | (error <= step * 1.001))
    assert "ties" in case["tags"] or np.count_nonzero(~on_grid) <= max(1, 0.05 * error.size)
    if "grads" in case:
        assert_same_bits(replayed.grad_inputs, ARRAYS[case["grads"]["inputs"]])


TIE = 1e-4  # So near to a half, a zero point may be rounded to either side


def has_zero(case):
    low, high = (float(ARRAYS[case["inputs"][name]]) for name in ("min_range", "max_range"))
    return low <= 0 <= high and low < high


@each_case("case", select(lambda case: case["function"] == "fake_affine_tensor_quant" and has_zero(case)))
def test_affine_quantizer_follows_the_reference(case):
    low, high = (float(ARRAYS[case["inputs"][name]]) for name in ("min_range", "max_range"))
    format = IntegerFormat(case["params"]["num_bits"], signed=True)
    parameters = parameters_from_range(low, high, format)
    found = fake_quantize_affine(
        tensor_of(case, "inputs"), float(parameters.scale), float(parameters.zero_point), format
    )
    recorded = ARRAYS[case["outputs"]["outputs"]]
    error, step = np.abs(found.numpy() - recorded), (high - low) / (2**format.bits - 1)
    assert np.all(error <= step * 1.001)
    if abs(low / step % 1 - 0.5) > TIE:
        near = error <= 1e-5 * np.maximum(np.abs(recorded), step)
        assert np.count_nonzero(~near) <= max(1, 0.02 * near.size)
