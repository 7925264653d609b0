"""What the weights and the activations of a quantized model cost, each by itself, and what that tells."""

import math
from dataclasses import dataclass
from typing import Annotated

from ptq_cli.recipe.known_modes import RANGES, ROUND

LEAST_GAIN_DB = 0.5
"""What a command is named for."""


@dataclass(frozen=True)
class NoiseShare:
    """A model of which a share is quantized, compared with the float model."""

    sqnr_db: Annotated[
        float, "SQNR of the output that the metric reads; NaN if it holds NaN or Inf. Decibels."
    ]
    metric: Annotated[
        float | None, "Value of the analysis' metric; null if it has none, and if that is the SQNR."
    ]


@dataclass(frozen=True, kw_only=True)
class NoiseShares:
    """The quantized model, and what is lost by its weights alone and by its activations alone."""

    weights: Annotated[
        NoiseShare | None,
        "Quantized weights and biases with float activations: the most that better activations can reach; "
        "null if no weight is quantized, or the constants have more than 2 GB.",
    ]
    activations: Annotated[
        NoiseShare | None,
        "Quantized activations with float weights and biases: the most that better weights can reach; null "
        "if no activation is quantized, if layers quantize them at each run, or the constants have more "
        "than 2 GB.",
    ]
    both: Annotated[NoiseShare, "The quantized model as it is."]
    advice: Annotated[
        tuple[str, ...], "What can be won by better weights and by better activations, with commands."
    ]


def noise_shares(
    weights: NoiseShare | None,
    activations: NoiseShare | None,
    both: NoiseShare,
    *,
    recovered: bool,
    ranges: bool,
    wide: str,
    why: str,
) -> NoiseShares:
    """Return the shares with advice for a model whose weights and ranges recovery may have chosen.

    ``wide`` is an integer format of 16 bits that the target computes activations in, ``why`` the reason why
    there is no share of the weights or of the activations; both may be empty.

    Example:
        >>> shares = [NoiseShare(sqnr_db, None) for sqnr_db in (25.0, 17.25, 17.0)]
        >>> found = noise_shares(*shares, recovered=True, ranges=True, wide="uint16", why="")
        >>> found.advice[0]
        'better weights can win at most 0.2 dB'
        >>> found.advice[1].partition(": ")[2]
        'try ptq export --set activations.dtype=uint16 or ptq tune, which leaves layers in float'
    """
    advice = [why] if why else []
    if activations is not None:
        better = "" if recovered else f"ptq export --recover {ROUND}"
        advice.append(_bound("better weights", activations, both, better))
    if activations is not None and weights is not None:
        commands = [
            *([] if ranges else [f"ptq export --recover {RANGES}"]),
            *([f"ptq export --set activations.dtype={wide}"] if wide else []),
            "ptq tune, which leaves layers in float",
        ]
        advice.append(_bound("better activations", weights, both, " or ".join(commands)))
    return NoiseShares(weights=weights, activations=activations, both=both, advice=tuple(advice))


def _bound(better: str, others: NoiseShare, both: NoiseShare, commands: str) -> str:
    """Say what something better can win at most: what is lost then is lost by the ``others`` alone."""
    if math.isnan(both.sqnr_db) or math.isnan(others.sqnr_db):
        return f"what {better} can win is not known, because an output holds NaN or Inf"
    gain = 0.0 if others.sqnr_db == both.sqnr_db else max(0.0, others.sqnr_db - both.sqnr_db)
    if not math.isfinite(gain):
        return f"{better} can win all that is lost"
    commands = f": try {commands}" if commands and gain >= LEAST_GAIN_DB else ""
    return f"{better} can win at most {gain:.1f} dB{commands}"
