"""A float model's channels get the factors that its quantized form gains from; it computes what it did."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array, is_array
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.rescaling.rescale import rescale
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import ScaleSpace, scale_spaces
from ptq_cli.plan.sites import Plan
from ptq_cli.recovery.factors.find_factors import SpaceFactors, find_factors
from ptq_cli.recovery.factors.plain_quantization import plainly_quantized, tensor_ranges
from ptq_cli.recovery.factors.space_samples import sample_spaces
from ptq_cli.recovery.samples.output_error import output_sqnr
from ptq_cli.recovery.samples.recovery_samples import RecoverySamples
from ptq_cli.runtime.sessions.session import Session

SAME = 1e-5
"""The largest difference of an output, as a share of its largest value, that counts as rounding."""

SEVERAL = 2
"""Of fewer gains there is no deviation."""

Kind = Callable[[ScaleSpace], bool]


@dataclass(frozen=True, kw_only=True)
class RescaledModel:
    """What became of a model's channels.

    Attributes:
        model: the model with factors, or as it was.
        spaces: how many groups of channels could have got factors.
        chosen: those that did, or would have.
        kept: whether the model has them.
        before, after: SQNR of the quantized model's outputs on the samples to decide by, in dB.
        difference: of the float model's outputs on these, as a share of their largest value.
    """

    model: ir.Model
    spaces: int
    chosen: Sequence[SpaceFactors]
    kept: bool = False
    before: float = float("nan")
    after: float = float("nan")
    difference: float = 0.0


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def rescale_model(
    model: ir.Model,
    plan: Plan,
    samples: RecoverySamples,
    bits: int,
    kind: Kind,
    *,
    judged: Plan | None = None,
    least_gain: float = 0.0,
    threads: int,
) -> RescaledModel:
    """Return a model with factors for its channels, if its quantized form is better for them.

    Requires: a prepared model. Ensures: the nodes and the names of all values are what they were, and on
    the samples to decide by its outputs are the same to 1e-5.

    Args:
        model: stays as it is.
        plan: for the model; it holds for the result too.
        samples: ranges are those of all of them; those to decide by say whether the factors are kept.
        bits: of the weights.
        kind: says which spaces are meant.
        judged: plan of the quantized form that decides, if it is another.
        least_gain: by how much the SQNR must rise, in dB.
        threads: that run the model.

    Edge case:
        Where values overflow or are not finite, errors are not numbers, and nothing is kept for them.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
    """
    rescaled = model.clone()
    trace = trace_scales(rescaled.graph)
    spaces = [space for space in scale_spaces(trace) if kind(space)]
    found = sample_spaces(model, spaces, plan, samples, threads=threads) if spaces else None
    chosen = find_factors(spaces, found, bits) if found is not None else []
    if not chosen:
        return RescaledModel(model=model, spaces=len(spaces), chosen=())
    rescale(rescaled.graph, trace, _by_root(chosen))
    floats = [_outputs(item, samples, threads) for item in (model, rescaled)]
    difference = _difference(*floats)
    integers = [
        _outputs_in_integers(item, judged or plan, samples, bits, threads) for item in (model, rescaled)
    ]
    before, after = (output_sqnr(floats[0], item) for item in integers)
    gains = _gains(floats[0], *integers)
    kept = after > before + least_gain and is_clear(gains, least_gain) and difference <= SAME
    return RescaledModel(
        model=rescaled if kept else model,
        spaces=len(spaces),
        chosen=chosen,
        kept=kept,
        before=before,
        after=after,
        difference=difference,
    )


def is_clear(gains: Sequence[float], least: float) -> bool:
    """Tell whether the mean of some gains is above the least one by two standard errors.

    A model's SQNR may hang on one sample out of many, whose gain says nothing of the next.

    Edge case:
        Gains that are not finite, of outputs without noise, do not count; one alone is taken as it is.

    Example:
        >>> is_clear([9.0, 11.0, 10.0], 3.0), is_clear([-2.0, 18.0, -1.0], 3.0)
        (True, False)
    """
    finite = [gain for gain in gains if math.isfinite(gain)]
    if len(finite) < SEVERAL:
        return all(gain > least for gain in finite)
    return float(np.mean(finite) - 2.0 * np.std(finite, ddof=1) / math.sqrt(len(finite))) > least


def _by_root(chosen: Sequence[SpaceFactors]) -> dict[int, float]:
    """Return the factor of each channel, by its number in the trace."""
    return {
        int(root): float(factor)
        for item in chosen
        for root, factor in zip(item.space.roots, item.factors, strict=True)
    }


Outputs = list[list[Array]]


def _gains(wanted: Outputs, before: Outputs, after: Outputs) -> list[float]:
    """Return by how many dB the SQNR of each piece of the samples rose."""
    return [
        output_sqnr([one], [new]) - output_sqnr([one], [old])
        for one, old, new in zip(wanted, before, after, strict=True)
    ]


def _outputs(model: ir.Model, samples: RecoverySamples, threads: int) -> Outputs:
    session = Session(serialize(model), threads=threads)
    return [session.run(piece) for piece in samples.decide]


def _outputs_in_integers(
    model: ir.Model, plan: Plan, samples: RecoverySamples, bits: int, threads: int
) -> Outputs:
    ranges = tensor_ranges(model, plan.measured, (*samples.decide, *samples.fit), threads=threads)
    session = Session(plainly_quantized(model, plan, ranges, bits), threads=threads)
    return [session.run(piece) for piece in samples.decide]


def _difference(wanted: Outputs, found: Outputs) -> float:
    """Return the largest difference of an output's number, as a share of the output's largest value."""
    worst = 0.0
    for index, first in enumerate(wanted[0]):
        if not is_array(first) or first.dtype.kind != "f":
            continue
        pairs = [
            (one[index].astype(np.float64), two[index].astype(np.float64))
            for one, two in zip(wanted, found, strict=True)
        ]
        if any(one.shape != two.shape for one, two in pairs):
            return float("inf")
        largest = max((float(np.max(np.abs(one), initial=0.0)) for one, _ in pairs), default=0.0)
        with np.errstate(invalid="ignore"):
            differences = [np.where(one == two, 0.0, np.abs(one - two)) for one, two in pairs]
        worst = max(worst, *(float(np.max(item, initial=0.0)) / max(largest, 1e-30) for item in differences))
    return worst
