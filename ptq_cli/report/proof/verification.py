"""What is known for certain of a quantized model: operators, structure, outputs; and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ptq_cli.qdq.proof.operators import OperatorProof
from ptq_cli.qdq.proof.target_faults import Fault


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """How far an output of the optimized graph is from that of the graph as it is written.

    Attributes:
        output: its name.
        absolute: the largest difference.
        step: what a quantization step of the output is.
        on_grid: the output is quantized, and the step is its own; otherwise that of an 8-bit grid over the
            range that it had.
        sqnr_db: of all its values; inf where they are the same.
    """

    output: str
    absolute: float
    step: float
    on_grid: bool
    sqnr_db: float

    @property
    def steps(self) -> float:
        """The largest difference in steps; 0 where there is no difference."""
        return self.absolute / self.step if self.absolute else 0.0


@dataclass(frozen=True)
class OutputComparison:
    """Outputs of the optimized graph against those of the graph as it is written.

    Attributes:
        data: whose samples, or that they were made up.
        samples: how many.
        differences: of each output of numbers.
    """

    data: str
    samples: int
    differences: tuple[OutputDifference, ...]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What ``verify`` found.

    Attributes:
        model: the file.
        made_by: what the file says of it.
        target: whose rules.
        opset: the model's.
        runtime: whose optimizer was asked, with its version; empty where the target's rules alone decide.
        operators: all but the pairs.
        unknown: why the work of an operator is not known, by its name.
        assumed: sizes that nobody gave, by ``input[axis]``.
        faults: rules of the target that the graph breaks.
        comparison: of the outputs; None where there were no data.
        min_integer_share: what is asked for, or None.
    """

    model: str
    made_by: str
    target: str
    opset: int
    runtime: str
    operators: tuple[OperatorProof, ...]
    unknown: Mapping[str, str]
    assumed: Mapping[str, int]
    faults: tuple[Fault, ...]
    comparison: OutputComparison | None
    min_integer_share: float | None

    @property
    def integer_work(self) -> int:
        """Multiply-accumulates that are computed in integers."""
        return sum(item.multiply_accumulates or 0 for item in self.operators if item.placement == "integer")

    @property
    def work(self) -> int:
        """All multiply-accumulates that are known."""
        return sum(item.multiply_accumulates or 0 for item in self.operators)

    @property
    def integer_share(self) -> float:
        """The share of the multiply-accumulates in integers; 1 where there are none at all."""
        return self.integer_work / self.work if self.work else 1.0

    @property
    def uncounted(self) -> tuple[OperatorProof, ...]:
        """Operators in float whose work is not known: with them the share may be lower than it seems."""
        return tuple(
            item
            for item in self.operators
            if item.multiply_accumulates is None and item.placement != "integer"
        )

    @property
    def share_passes(self) -> bool | None:
        """Whether the share is at least what is asked for; None where nothing is."""
        if self.min_integer_share is None:
            return None
        return not self.uncounted and self.integer_share >= self.min_integer_share

    @property
    def verdict(self) -> Literal["pass", "fail"]:
        """Fail where a rule is broken or the share is too low."""
        return "fail" if self.faults or self.share_passes is False else "pass"
