"""What ``ptq tune`` tried, rung by rung, and what it chose."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ptq_cli.core.documents import AtLeast, FileFormat, Matches
from ptq_cli.core.errors import ReportError
from ptq_cli.evaluation.document.gate_result import is_held
from ptq_cli.evaluation.document.measurement import Unit

_Count = Annotated[int, AtLeast(0)]
BudgetKind = Literal["max_drop", "min"]


@dataclass(frozen=True, kw_only=True)
class BudgetCheck:
    """One budget, and what was seen of it."""

    metric: Annotated[str, "The metric's name."]
    unit: Annotated[Unit, "The metric's."]
    kind: Annotated[BudgetKind, '"max_drop" limits the drop from above, "min" the value from below.']
    limit: Annotated[float, "The budget, in the metric's unit."]
    value: Annotated[float, "The drop, or the value."]
    bound: Annotated[
        float, "How large the drop, or how small the value, may be for samples that were not seen."
    ]

    @property
    def holds(self) -> bool:
        """Whether the bound is within the budget; NaN never is."""
        return is_held(self.kind, self.limit, self.bound)

    @property
    def kept(self) -> bool:
        """Whether the measured value is within the budget, whatever may be of others."""
        return is_held(self.kind, self.limit, self.value)


@dataclass(frozen=True, kw_only=True)
class MovedLayers:
    """What a candidate does not compute in integers of 8 bits in calibrated ranges, for accuracy."""

    in_float: Annotated[tuple[str, ...], "Layers that were left in float for accuracy."] = ()
    in_16_bits: Annotated[tuple[str, ...], "Activations that have 16 bits for accuracy."] = ()
    dynamic: Annotated[
        tuple[str, ...],
        "Layers whose activations become integers in ranges that are found at each run, for accuracy.",
    ] = ()
    in_8_bits: Annotated[
        tuple[str, ...], "Layers whose weights have 8 bits, and not fewer, for accuracy."
    ] = ()


@dataclass(frozen=True, kw_only=True)
class LadderStep(MovedLayers):
    """One candidate."""

    name: Annotated[
        str, "What is new about it: default, a rung of recovery, or what its worst output has to have."
    ]
    rungs: Annotated[tuple[str, ...], "Of recovery that it has."]
    goal_db: Annotated[
        float | None, "SQNR of the worst output that it was made for; null for the recipe's goal."
    ] = None
    sqnr_db: Annotated[float, "Of all outputs, on the samples to choose by."]
    kept: Annotated[bool, "It was better than the best before it."]
    checks: Annotated[
        tuple[BudgetCheck, ...],
        "Each budget on the samples to choose by, as the held-out samples are expected to show it.",
    ]
    proof: Annotated[
        tuple[BudgetCheck, ...], "Each budget on the held-out samples; empty if they were not looked at."
    ] = ()
    level: Annotated[float | None, "How likely the proof may be wrong; None without one."] = None

    @property
    def met(self) -> bool:
        """Whether the held-out samples have shown that every budget is kept."""
        return bool(self.proof) and all(check.holds for check in self.proof)


LADDER_INTERRUPTED = "it was interrupted"  # why a ladder stopped that the same command continues


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """All candidates, in the order in which they were tried."""

    FORMAT: ClassVar[FileFormat] = FileFormat(
        name="ptq.tune", version=2, noun="ladder", hint="run ptq tune again"
    )

    model_sha256: Annotated[
        Annotated[str, Matches("[0-9a-f]{64}", "a SHA-256 in hexadecimal")],
        "Of the quantized model that was chosen.",
    ]
    samples: Annotated[_Count, "How many the candidates were compared on."]
    set_aside: Annotated[_Count, "How many samples the budget was proven on."]
    steps: Annotated[tuple[LadderStep, ...], "The candidates."]
    chosen: Annotated[_Count, "Index of the one that was written."]
    met: Annotated[bool, "The budget is kept, with 95 % confidence."]
    stopped: Annotated[str, "Why no further candidate was tried; empty if the budget was met."] = ""
    advice: Annotated[tuple[str, ...], "What it would take, if the budget was not met."] = ()
    untried: Annotated[
        str, "Why no activations of 16 bits were tried; empty if they were, or if it did not come to that."
    ] = ""

    @property
    def best(self) -> LadderStep:
        """The candidate that was written."""
        return self.steps[self.chosen]

    def require_consistent(self) -> None:
        """Refuse a choice that is not there."""
        if self.chosen >= len(self.steps):
            raise ReportError("'chosen' names no step", hint=self.FORMAT.hint)
