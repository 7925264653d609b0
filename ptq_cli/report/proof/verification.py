"""What is proven about a quantized model: operators, structure, outputs, and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ptq_cli.qdq.proof.operators import OperatorProof
from ptq_cli.qdq.proof.target_faults import Fault
from ptq_cli.report.document.saturation import NOTHING, Saturation


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """The difference between an output of the optimized graph and of the graph as written.

    Attributes:
        output: its name.
        absolute: the largest difference.
        step: the size of a quantization step of the output.
        on_grid: whether the output is quantized and the step is its own; otherwise the step is that of an
            8-bit grid over its range.
        sqnr_db: SQNR over all its values; inf if they are equal.
    """

    output: str
    absolute: float
    step: float
    on_grid: bool
    sqnr_db: float

    @property
    def steps(self) -> float:
        """The largest difference in steps; 0 if there is no difference."""
        return self.absolute / self.step if self.absolute else 0.0


@dataclass(frozen=True)
class OutputComparison:
    """The outputs of the optimized graph compared with those of the graph as written.

    Attributes:
        data: where the samples are from, or that they were generated.
        samples: how many samples.
        differences: one for each numeric output.
    """

    data: str
    samples: int
    differences: tuple[OutputDifference, ...]


@dataclass(frozen=True, kw_only=True)
class KernelDifference:
    """The largest difference between a kernel and its operators as written, on the same integers.

    Attributes:
        node: name of the operator.
        op: its type.
        tensor: what it computes: integers, or an output of the model.
        steps: the largest difference, in steps of 8 bits over its range.
        share: share of the values that differ, 0 to 1; None for floats, which nearly all differ a little.
    """

    node: str
    op: str
    tensor: str
    steps: float
    share: float | None


@dataclass(frozen=True, kw_only=True)
class KernelComparison:
    """Each kernel compared with its operators as written, on the integers that they meet in the file.

    Attributes:
        samples: how many samples.
        kernels: how many were compared.
        differences: kernels that differ at all, the largest difference first.
        limit: the largest difference that passes, in steps.
        fault: why kernels could not be compared; empty if they were.
    """

    samples: int
    kernels: int
    differences: tuple[KernelDifference, ...]
    limit: float
    fault: str = ""

    @property
    def wrong(self) -> tuple[KernelDifference, ...]:
        """Kernels that differ by more than the limit."""
        return tuple(item for item in self.differences if not item.steps <= self.limit)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of ``verify``.

    Attributes:
        model: the file.
        made_by: the tool that wrote the file, according to the file.
        target: the target whose rules apply.
        opset: the model's opset.
        runtime: the runtime whose optimizer was used, with its version; empty if only the target's rules
            decide.
        operators: all operators except the Q/DQ pairs.
        unknown: why the work of an operator is not known, by its name.
        assumed: sizes that were assumed, by ``input[axis]``.
        faults: rules of the target that the graph breaks.
        comparison: comparison of the outputs; None if there were no data that could be used.
        min_integer_share: the required share, or None.
        data_faults: why data of the recipe could not be used for the comparison; empty if the first could.
        kernel_comparison: comparison of each kernel; None if outputs were not compared, or if ONNX Runtime
            does not run the target.
        once: by an operator's name, the loop that its work is counted for one step of, because only a run
            tells how many there are.
        saturation: which layers can saturate on x86 processors without VNNI.
        saturates_here: whether this processor is such a one, and there are such layers.
        require_portable: whether there may be none on any processor.
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
    data_faults: tuple[str, ...] = ()
    kernel_comparison: KernelComparison | None = None
    once: Mapping[str, str] = field(default_factory=dict)
    saturation: Saturation = NOTHING
    saturates_here: bool = False
    require_portable: bool = False

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
        """The share of the multiply-accumulates in integers; 1 if there are none at all."""
        return self.integer_work / self.work if self.work else 1.0

    @property
    def uncounted(self) -> tuple[OperatorProof, ...]:
        """Operators in float whose work is not known, so that the real share may be lower."""
        return tuple(
            item
            for item in self.operators
            if item.placement != "integer" and (item.multiply_accumulates is None or item.name in self.once)
        )

    @property
    def share_passes(self) -> bool | None:
        """Whether the share is at least the required one; None if none is required."""
        if self.min_integer_share is None:
            return None
        return not self.uncounted and self.integer_share >= self.min_integer_share

    @property
    def sums_pass(self) -> bool:
        """Whether no layer can saturate where it must not: on any processor, or in a runtime on this one."""
        fails_here = self.saturates_here and bool(self.runtime)
        return not fails_here and not (self.require_portable and self.saturation.saturating)

    @property
    def verdict(self) -> Literal["pass", "fail"]:
        """``"fail"`` if a rule is broken, the share is too low, or a kernel is wrong or can saturate."""
        wrong = self.kernel_comparison is not None and self.kernel_comparison.wrong
        holds = not self.faults and self.share_passes is not False and not wrong and self.sums_pass
        return "pass" if holds else "fail"
