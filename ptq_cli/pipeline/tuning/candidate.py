"""What a candidate of a tuning is made with, and what was measured of it."""

import math
from dataclasses import dataclass, fields

from ptq_cli.report.document.ladder import LadderStep
from ptq_cli.report.document.measurement import Measurement

SQNR = "sqnr_db"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What a model is made with.

    Attributes:
        rungs: of recovery, in the order in which they run.
        in_float: layers that stay in float.
        in_16_bits: activations that have 16 bits.
        dynamic: layers whose activations become integers in ranges that are found at each run.
        weights_alone: layers of which only the weights are integers.
    """

    rungs: tuple[str, ...] = ()
    in_float: tuple[str, ...] = ()
    in_16_bits: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    weights_alone: tuple[str, ...] = ()

    @classmethod
    def of(cls, step: LadderStep) -> "Candidate":
        """Return the candidate that a step of a ladder tells of."""
        return cls(**{item.name: getattr(step, item.name) for item in fields(cls)})

    @property
    def key(self) -> str:
        """A text that identifies it."""
        names = self.rungs, self.in_float, self.in_16_bits, self.dynamic, self.weights_alone
        return "|".join(",".join(part) for part in names)


@dataclass(frozen=True)
class Seen:
    """What was measured of a candidate, and on how many samples."""

    samples: int
    measurements: tuple[Measurement, ...]

    @property
    def sqnr_db(self) -> float:
        """SQNR of all outputs: the noise of each counts as a share of its signal.

        Edge case:
            Infinite if no output differs.
        """
        shares = [
            10 ** (-item.quantized_value / 10)
            for item in self.measurements
            if item.name == SQNR or item.name.startswith(f"{SQNR}[")
        ]
        noise = sum(shares) / len(shares) if shares else math.nan
        return -10 * math.log10(noise) if noise else math.inf
