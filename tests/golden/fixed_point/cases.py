"""Replay one recorded case of QKeras' ``quantized_bits`` and its rounding against ptq's fixed point."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ptq_cli.core.errors import PtqError
from ptq_cli.quantizers.automatic_scale import AutoScale
from ptq_cli.quantizers.fixed_point import fixed_point, fixed_point_scale
from ptq_cli.quantizers.step import round_through, stochastic_round
from tests.golden.verdicts import Arrays, Case, NotCoveredError, OnPurposeError, compare, kind_of, require

ON_PURPOSE = {
    "negative integer": "QKeras 0.9.0 fails on one; ours takes it, as QKeras in git does",
    "infinite input": "theirs is x + (quantized - x), which is NaN; ours saturates, as every runtime does",
}
NAMES = {"use_stochastic_rounding": "stochastic"}
AUTO_NAMES = {
    "scale_axis": "axis",
    "elements_per_scale": "elements_per_scale",
    "min_po2_exponent": "min_po2_exponent",
    "max_po2_exponent": "max_po2_exponent",
    "post_training_scale": "frozen",
}
# Parameters that have no influence on the scale.
MIXING = ("qnoise_factor", "use_ste", "stochastic", "training", "generator")

SEED = 20
SIGMAS = 6  # Among a few hundred means, one that far off is none that chance gives


def replay(case: Case, arrays: Arrays) -> None:
    """Return if ours agrees with what was recorded, otherwise raise one of the verdicts."""
    functions: dict[str, Callable[[Case, Arrays], None]] = {
        "quantized_bits": _quantized_bits,
        "quantized_bits_auto_ignores_stochastic": _ignores_stochastic,
        "_round_through": _round_through,
        "stochastic_round": _round_through,
    }
    if case["function"] not in functions:
        raise NotCoveredError(case["function"])
    functions[case["function"]](case, arrays)


def _quantized_bits(case: Case, arrays: Arrays) -> None:
    options = _options(case)
    x = torch.tensor(arrays[case["inputs"]["x"]]).requires_grad_()
    if "draws" in case["params"]:
        _statistics(case, arrays, lambda x, generator: fixed_point(x, **options, generator=generator))
        return
    try:
        found = fixed_point(x, **options, training=False)
        scale = fixed_point_scale(x, **{name: options[name] for name in options if name not in MIXING})
    except PtqError as error:
        require("raises" in case, f"ours raises {type(error).__name__}: {error.message}")
        require(isinstance(error, kind_of(case)), f"ours raises {type(error).__name__}")
        return
    if "raises" in case:
        require(options.get("integer", 0) < 0, f"the reference raises {case['raises']}, ours does not")
        raise OnPurposeError("negative integer")
    if not np.isfinite(arrays[case["inputs"]["x"]]).all():
        _require_saturation(x, found, arrays[case["outputs"]["y"]])
    compare("y", found, arrays[case["outputs"]["y"]])
    if "scale" in case["outputs"]:
        compare("scale", scale, arrays[case["outputs"]["scale"]])
    _compare_gradient(case, arrays, x, found)


def _require_saturation(x: torch.Tensor, found: torch.Tensor, recorded: np.ndarray) -> None:
    finite = torch.isfinite(x)
    compare("y of finite values", found[finite], recorded[finite.numpy()])
    require(bool(found[torch.isnan(x)].isnan().all()), "NaN does not stay")
    edges = fixed_point(torch.sign(x[torch.isinf(x)]) * 1e30, bits=4)
    require(torch.equal(found[torch.isinf(x)], edges), "infinities do not saturate")
    raise OnPurposeError("infinite input")


def _ignores_stochastic(case: Case, arrays: Arrays) -> None:
    x = torch.tensor(arrays[case["inputs"]["x"]])
    generator = torch.Generator().manual_seed(SEED)
    found = fixed_point(x, **_options(case), stochastic=True, generator=generator)
    compare("y", found, arrays[case["outputs"]["y"]])


def _round_through(case: Case, arrays: Arrays) -> None:
    options = {NAMES.get(name, name): value for name, value in case["params"].items() if name != "draws"}
    if "draws" in case["params"]:
        function = stochastic_round if case["function"] == "stochastic_round" else round_through
        _statistics(case, arrays, lambda x, generator: function(x, **options, generator=generator))
        return
    training = "training" in case["tags"]
    x = torch.tensor(arrays[case["inputs"]["x"]]).requires_grad_()
    found = round_through(
        x, **options, training=training, generator=torch.Generator().manual_seed(SEED) if training else None
    )
    if "y" in case["outputs"] and not training:
        compare("y", found, arrays[case["outputs"]["y"]])
    _compare_gradient(case, arrays, x, found)


def _compare_gradient(case: Case, arrays: Arrays, x: torch.Tensor, found: torch.Tensor) -> None:
    if "grads" in case:
        found.backward(torch.tensor(arrays[case["grad_outputs"]["y"]]))
        compare("gradient", x.grad, arrays[case["grads"]["x"]])


def _statistics(
    case: Case, arrays: Arrays, draw: Callable[[torch.Tensor, torch.Generator], torch.Tensor]
) -> None:
    """Draw as often as the reference did; compare what occurs, and how often."""
    x, draws = torch.tensor(arrays[case["inputs"]["x"]]), case["params"]["draws"]
    generator = torch.Generator().manual_seed(SEED)
    found = draw(x.expand(draws, *x.shape), generator)
    recorded = {name: arrays[key] for name, key in case["outputs"].items()}
    compare("lower", found.amin(0), recorded["lower"])
    compare("upper", found.amax(0), recorded["upper"])
    # Both are samples: the variance of the difference is twice that of one of them.
    share = recorded["p_upper"].astype(np.float64)
    gap = recorded["upper"].astype(np.float64) - recorded["lower"]
    sigma = gap * np.sqrt(2 * share * (1 - share) / draws)
    error = np.abs(found.double().mean(0).numpy() - recorded["mean"])
    require((error <= SIGMAS * sigma + 1e-6 * np.abs(recorded["mean"])).all(), "the means differ")


def _options(case: Case) -> dict[str, Any]:
    """Return our arguments for the recorded ones."""
    params = {name: _decoded(value) for name, value in case["params"].items() if name != "draws"}
    auto = {AUTO_NAMES[name]: params.pop(name) for name in list(params) if name in AUTO_NAMES}
    options = {NAMES.get(name, name): value for name, value in params.items()}
    if "symmetric" in options:
        options["symmetric"] = bool(options["symmetric"])
    return {**options, "auto": AutoScale(**auto)}


def _decoded(value: Any) -> Any:
    return torch.tensor(value["ndarray"], dtype=torch.float32) if isinstance(value, dict) else value
