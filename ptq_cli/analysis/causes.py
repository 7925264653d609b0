"""Why a tensor or a layer loses more than others, from its numbers, and which options to try."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.evaluation.document.report_document import SaturatingLayer
from ptq_cli.evaluation.document.tensor_rows import Cause

GOOD_DB = 30.0
"""A tensor above this SQNR, about 5 bits of a well used range, gets no finding."""
MOST = 0.5
"""Share of the noise above which clipping is the cause; used share of the range below which outliers are."""
IMBALANCED = 4.0
"""Ratio of a channel's range to the median's at which a shared scale costs two bits."""
FEW = 128
"""Number of integer values below which the format itself is the cause: 7 bits have 128."""
MOST_BITS = 8
"""Of a weight's integers."""
GAIN_DB = 1.0
"""Least gain of the output's SQNR for which leaving a layer in float is proposed."""


@dataclass(frozen=True)
class Finding:
    """A cause, its description and what to try; all empty if there is no cause."""

    cause: Cause = ""
    finding: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Use:
    """How an activation or a weight uses its integers.

    Attributes:
        sqnr_db: SQNR of its own quantization.
        clip_share: share of its noise that comes from values outside the range.
        clipped: share of such values.
        used: share of the range that the middle 99.9 % of the values occupy; None if that is not known.
        imbalance: largest magnitude of a channel divided by the median channel's, if all share a scale;
            otherwise None.
        levels: how many values an integer can have; 0 for a codebook.
        readers: the layers that read it.
        better: the amax method whose range is expected to be better; empty if none is.
        bits: of a weight's evenly spaced integers, as they were asked for; None of others.
        output_db: SQNR of what its layers make, where recovery chose a weight for that; None of others.
    """

    sqnr_db: float
    clip_share: float = 0.0
    clipped: float = 0.0
    used: float | None = None
    imbalance: float | None
    levels: int = 0
    readers: Sequence[str] = ()
    better: str = ""
    bits: int | None = None
    output_db: float | None = None


def activation_finding(use: Use, *, histograms: bool) -> Finding:
    """Return why an activation loses a lot, if it does."""
    if use.sqnr_db >= GOOD_DB:
        return Finding()
    # Without a histogram no method can be compared.
    better = f"--amax {use.better}" if use.better else ""
    remedy = better or (exclude(use.readers) if histograms else "--method histogram --amax mse")
    return _range_finding(use, remedy, " and cause most of the noise")


def weight_finding(use: Use, *, widened: float, quantizer: str = "") -> Finding:
    """Return why a weight loses a lot, if it does.

    ``widened`` is the share of the channels whose scale was widened for a large bias, ``quantizer`` that of a
    weight whose values are looked up.
    """
    # What recovery moved is further from the float weight on purpose.
    if (use.sqnr_db if use.output_db is None else use.output_db) >= GOOD_DB:
        return Finding()
    if widened:  # Checked before the number of steps, which it makes small.
        text = f"the scale of {percent(widened)} of the channels was widened so that the bias fits into int32"
        return Finding("bias overflow", text, exclude(use.readers))
    if use.levels == 0:
        remedy = "--set weights.quantizer=scaled" if use.bits is None else exclude(use.readers)
        return Finding("few steps", f"its values are {quantizer}", remedy)
    if use.levels < FEW and use.bits != MOST_BITS:
        return Finding("few steps", f"its integers have only {use.levels} values", "--weight-bits 8")
    if use.output_db is not None:
        return Finding()
    better = f"--set amax.weight_method={use.better}" if use.better else ""
    return _range_finding(use, better or exclude(use.readers))


def tensor_not_finite(model: str, sample: str) -> Finding:
    """Return what is found of a tensor that holds NaN or Inf.

    Example:
        >>> tensor_not_finite("quantized model", "sample 3 (x.npz[3])").finding
        'it holds NaN or Inf in the quantized model, first at sample 3 (x.npz[3])'
    """
    return Finding("not finite", f"it holds NaN or Inf in the {model}, first at {sample}")


def layer_not_finite(name: str, *, only_quantized: str, left_float: str, whole: str) -> Finding:
    """Return what is found of a layer whose quantization makes the output NaN or Inf, or whose floats do.

    Example:
        >>> layer_not_finite("log", only_quantized="sample 0 (a.png)", left_float="", whole="").remedy
        '--exclude log'
        >>> layer_not_finite("fc", only_quantized="", left_float="", whole="")
        Finding(cause='', finding='', remedy='')
    """
    if only_quantized:
        text = f"with only this layer quantized, the output holds NaN or Inf, first at {only_quantized}"
        return Finding("not finite", text, exclude([name]))
    if whole and not left_float:
        return Finding(
            "not finite", "with this layer in float, the output holds no NaN and no Inf", exclude([name])
        )
    if left_float and not whole:
        text = f"with only this layer in float, the output holds NaN or Inf, first at {left_float}"
        return Finding("not finite", text)
    return Finding()


def layer_finding(
    name: str,
    tensors: Sequence[tuple[float, str, Finding]],
    *,
    not_fused: str,
    gain_db: float | None,
    saturating: SaturatingLayer | None = None,
) -> Finding:
    """Return why a layer loses a lot, from the tensors that it reads and computes.

    Of each tensor, ``tensors`` has the SQNR of its own quantization, its name and its finding. ``not_fused``
    says why the layer computes in floats although its weight is quantized, and ``saturating`` what of its
    weight can saturate on this processor: then no option helps.
    """
    if saturating is not None:
        pairs = f"{saturating.pairs:,} of {saturating.of_pairs:,} pairs"
        text = f"{pairs} of its weights can saturate on this processor, which has no VNNI"
        return Finding("saturation", text)
    if not_fused:
        return Finding(
            "not fused", f"its weight is quantized, but it computes in floats: {not_fused}", exclude([name])
        )
    # A tensor that is not finite has no ratio; what it reads or another layer may be the reason.
    for _, tensor, found in sorted(tensors, key=lambda item: (math.isnan(item[0]), item[0])):
        if found.cause:
            return Finding(found.cause, f"'{tensor}': {found.finding}", found.remedy)
    if gain_db is not None and gain_db >= GAIN_DB:
        return Finding(
            "", f"with this layer in float, the output's SQNR is {gain_db:.1f} dB higher", exclude([name])
        )
    return Finding()


def exclude(layers: Sequence[str]) -> str:
    """Return the options that leave layers in float, quoted for a shell.

    Example:
        >>> exclude(["fc", "/conv 1"])
        "--exclude fc --exclude '/conv 1'"
    """
    return " ".join(f"--exclude {shlex.quote(name)}" for name in layers)


def percent(share: float) -> str:
    """Return a share as a percentage, with two significant digits."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 10 else f"{float(f'{value:.2g}'):.15g} %"


def _range_finding(use: Use, remedy: str, effect: str = "") -> Finding:
    """Return what the range of a tensor costs, which another range would remedy, or its channels."""
    if use.clip_share > MOST:
        text = f"{percent(use.clipped)} of the values are outside the range{effect}"
        return Finding("clipping", text, remedy)
    if use.used is not None and use.used < MOST:
        text = f"the middle 99.9 % of the values occupy {percent(use.used)} of the range"
        return Finding("outliers", text, remedy)
    if use.imbalance is not None and use.imbalance >= IMBALANCED:
        text = f"the widest channel's values are {use.imbalance:.1f} times as large as the median channel's"
        return Finding("channel imbalance", text, exclude(use.readers))
    return Finding()
