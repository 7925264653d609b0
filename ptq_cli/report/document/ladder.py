"""What ``ptq tune`` tried, rung by rung, and what it chose."""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from ptq_cli.core.documents.json_values import AtLeast, Matches, decode, encode, strict_json
from ptq_cli.core.errors import ReportError
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.intervals.interval import TOLERANCE

FORMAT = "ptq.tune"
FORMAT_VERSION = 1

Count = Annotated[int, AtLeast(0)]
BudgetKind = Literal["max_drop", "min"]


@dataclass(frozen=True, kw_only=True)
class BudgetCheck:
    """One budget, and what was seen of it.

    Attributes:
        metric: the metric's name.
        unit: the metric's.
        kind: ``"max_drop"`` limits the drop from above, ``"min"`` the value from below.
        limit: the budget, in the metric's unit.
        value: the drop, or the value.
        bound: how large the drop, or how small the value, may be for samples that were not seen.

    Example:
        >>> BudgetCheck(
        ...     metric="top1", unit="share", kind="max_drop", limit=0.01, value=0.002, bound=0.008
        ... ).holds
        True
    """

    metric: str
    unit: Unit
    kind: BudgetKind
    limit: float
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the bound is within the budget; NaN never is."""
        return self._within(self.bound)

    @property
    def kept(self) -> bool:
        """Whether the measured value is within the budget, whatever may be of others."""
        return self._within(self.value)

    def _within(self, value: float) -> bool:
        if self.kind == "min":
            return value >= self.limit - TOLERANCE
        return value <= self.limit + TOLERANCE


@dataclass(frozen=True, kw_only=True)
class LadderStep:
    """One candidate.

    Attributes:
        name: what is new about it: ``default``, a rung of recovery, or which layers are computed otherwise.
        rungs: of recovery that it has.
        in_float: layers that were left in float for accuracy.
        in_16_bits: activations that have 16 bits for accuracy.
        dynamic: layers whose activations become integers in ranges that are found at each run, for accuracy.
        weights_alone: layers of which only the weights are integers, for accuracy.
        sqnr_db: of all outputs, on the samples to choose by.
        kept: it was better than the best before it.
        checks: each budget on the samples to choose by, as the samples set aside are expected to show it.
        proof: each budget on the samples set aside; empty if they were not looked at.
        level: how likely the proof may be wrong; None without one.
    """

    name: str
    rungs: tuple[str, ...]
    in_float: tuple[str, ...]
    sqnr_db: float
    kept: bool
    checks: tuple[BudgetCheck, ...]
    proof: tuple[BudgetCheck, ...] = ()
    level: float | None = None
    in_16_bits: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    weights_alone: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        """Whether the samples set aside have shown that every budget is kept."""
        return bool(self.proof) and all(check.holds for check in self.proof)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """All candidates, in the order in which they were tried.

    Attributes:
        model_sha256: of the quantized model that was chosen.
        samples: how many the candidates were compared on.
        set_aside: how many samples the budget was proven on.
        steps: the candidates.
        chosen: index of the one that was written.
        met: the budget is kept, with 95 % confidence.
        stopped: why no further candidate was tried; empty if the budget was met.
        advice: what it would take, if the budget was not met.
        untried: why no activations of 16 bits were tried; empty if they were, or if it did not come to that.
    """

    model_sha256: Annotated[str, Matches("[0-9a-f]{64}", "a SHA-256 in hexadecimal")]
    samples: Count
    set_aside: Count
    steps: tuple[LadderStep, ...]
    chosen: Count
    met: bool
    stopped: str = ""
    advice: tuple[str, ...] = ()
    untried: str = ""

    @property
    def best(self) -> LadderStep:
        """The candidate that was written."""
        return self.steps[self.chosen]


def ladder_to_json(ladder: Ladder) -> str:
    """Return a ladder as JSON, for ``tune.json``."""
    document = {"format": FORMAT, "format_version": FORMAT_VERSION, **encode(ladder)}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def parse_ladder(content: bytes) -> Ladder:
    """Return the ladder that ``ladder_to_json`` wrote.

    Raises:
        ReportError: it is damaged, or of another format version.
    """
    try:
        value = strict_json(content)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"it is not valid JSON: {error}", hint="run ptq tune again") from error
    header = {"format": FORMAT, "format_version": FORMAT_VERSION}
    if not isinstance(value, dict) or any(value.get(key) != wanted for key, wanted in header.items()):
        raise ReportError("it is not a tune.json that this ptq reads", hint="run ptq tune again")
    body = {key: entry for key, entry in value.items() if key not in header}
    found: Ladder = decode(Ladder, body, "")
    if found.chosen >= len(found.steps):
        raise ReportError("'chosen' names no step", hint="run ptq tune again")
    return found
