"""What was done to the channels of a float model before it was calibrated, in words and values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rescaling:
    """What a rung did to the channels of a float model.

    Attributes:
        rung: its name.
        kept: whether the model has the factors.
        groups: how many groups of channels got factors, or would have.
        possible: how many could have.
        before, after: SQNR of the quantized outputs on the samples set aside, in dB.
        samples, decided_by: how many samples ranges were taken from, and how many were set aside.
        difference: of the float model's outputs, as a share of their largest value.
        strengths: of each group, by the layer that makes its channels.
        reason: why nothing was done, if that is not for want of gain.
        is_limited: whether the limit of memory is that reason.
    """

    rung: str
    kept: bool = False
    groups: int = 0
    possible: int = 0
    before: float = float("nan")
    after: float = float("nan")
    samples: int = 0
    decided_by: int = 0
    difference: float = 0.0
    strengths: Mapping[str, float] | None = None
    reason: str = ""
    is_limited: bool = False

    def values(self) -> dict[str, object]:
        """Return it for JSON, and for the metadata of a model; an SQNR that is not finite is null."""
        decibels = (self.before, self.after)
        return {
            "rung": self.rung,
            "kept": self.kept,
            "groups": self.groups,
            "possible": self.possible,
            "sqnr_db": [round(value, 3) if math.isfinite(value) else None for value in decibels],
            "samples": self.samples,
            "decided_by": self.decided_by,
            "difference": float(f"{self.difference:.3g}"),
            "strengths": dict(self.strengths or {}),
            "reason": self.reason,
        }

    def describe(self) -> str:
        """Return what was done, or why nothing was, as a line.

        Example:
            >>> gain = {"before": 8.57, "after": 37.06, "decided_by": 32}
            >>> Rescaling(rung="equalize", kept=True, groups=9, **gain).describe()
            'equalize: 9 groups of channels; output SQNR from 8.6 to 37.1 dB on 32 samples set aside'
            >>> Rescaling(rung="smooth").describe()
            'note: smooth changed nothing: the model has no channels that it could change'
        """
        samples = f"{self.decided_by} sample{'' if self.decided_by == 1 else 's'} set aside"
        change = f"output SQNR from {self.before:.1f} to {self.after:.1f} dB on {samples}"
        if self.kept:
            return f"{self.rung}: {self.groups} group{'' if self.groups == 1 else 's'} of channels; {change}"
        reason = self.reason
        if not reason and self.groups:
            reason = f"it did not help, so it was not kept ({change})"
        elif not reason and self.possible:
            reason = "no group of channels would lose half its error"
        return (
            f"note: {self.rung} changed nothing: {reason or 'the model has no channels that it could change'}"
        )
