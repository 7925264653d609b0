"""Result of ``ptq verify``: operators, structure, outputs, kernels, saturation, and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from ptq_cli.evaluation.document.report_document import NOTHING, Saturation
from ptq_cli.qdq.proof.operators import OperatorProof
from ptq_cli.qdq.proof.target_faults import Fault

KERNEL_STEPS = 2.0  # default limit: rounding explains one step of a kernel, a second what is fused further


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """The difference between an output of the optimized graph and of the graph as written."""

    DERIVED: ClassVar[tuple[str, ...]] = ("steps",)

    output: Annotated[str, "Its name."]
    absolute: Annotated[float, "The largest difference."]
    step: Annotated[float, "The size of a quantization step of the output."]
    on_grid: Annotated[
        bool,
        "Whether the output is quantized and the step is its own; otherwise the step is that of an 8-bit "
        "grid over its range.",
    ]
    sqnr_db: Annotated[float, "SQNR over all its values; inf if they are equal."]
    open_sizes: Annotated[
        bool,
        "Whether the runtime is this far off only where it compiles the model for any sizes.",
    ] = False

    @property
    def steps(self) -> float:
        """The largest difference in steps; 0 if there is no difference."""
        return self.absolute / self.step if self.absolute else 0.0


@dataclass(frozen=True)
class OutputComparison:
    """The outputs of the optimized graph compared with those of the graph as written."""

    data: Annotated[str, "Where the samples are from, or that they were generated."]
    samples: Annotated[int, "How many samples."]
    differences: Annotated[tuple[OutputDifference, ...], "One for each numeric output."]


@dataclass(frozen=True, kw_only=True)
class KernelDifference:
    """The largest difference between a kernel and its operators as written, on the same integers."""

    node: Annotated[str, "Name of the operator."]
    op: Annotated[str, "Its type."]
    tensor: Annotated[str, "What it computes: integers, or an output of the model."]
    steps: Annotated[float, "The largest difference, in steps of 8 bits over its range."]
    share: Annotated[
        float | None,
        "Share of the values that differ, 0 to 1; None for floats, which nearly all differ a little.",
    ]


@dataclass(frozen=True, kw_only=True)
class KernelComparison:
    """Each kernel compared with its operators as written, on the integers that they meet in the file."""

    samples: Annotated[int, "How many samples."]
    kernels: Annotated[int, "How many were compared."]
    differences: Annotated[
        tuple[KernelDifference, ...], "Kernels that differ at all, the largest difference first."
    ]
    limit: Annotated[float, "The largest difference that passes, in steps."]
    fault: Annotated[str, "Why kernels could not be compared; empty if they were."] = ""
    right_together: Annotated[
        bool,
        "Whether the outputs agree so well that no kernel is wrong as it runs in the model: OpenVINO makes "
        "others of a part of it.",
    ] = False

    @property
    def wrong(self) -> tuple[KernelDifference, ...]:
        """Kernels that differ by more than the limit; none if all are right together."""
        if self.right_together:
            return ()
        return tuple(item for item in self.differences if not item.steps <= self.limit)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What ``ptq verify`` found."""

    DERIVED: ClassVar[tuple[str, ...]] = ("verdict", "integer_share", "integer_work", "work")

    model: Annotated[str, "The file."]
    made_by: Annotated[str, "The tool that wrote the file, according to the file."]
    target: Annotated[str, "The target whose rules apply."]
    opset: Annotated[int, "The model's opset."]
    runtime: Annotated[
        str,
        "The runtime whose optimizer was used, with its version; empty if only the target's rules decide.",
    ]
    operators: Annotated[tuple[OperatorProof, ...], "All operators except the Q/DQ pairs."]
    unknown: Annotated[Mapping[str, str], "Why the work of an operator is not known, by its name."]
    assumed: Annotated[
        Mapping[str, int], "Sizes that this counts with because they are not fixed, by input[axis]."
    ]
    faults: Annotated[tuple[Fault, ...], "Rules of the target that the graph breaks."]
    comparison: Annotated[
        OutputComparison | None, "Comparison of the outputs; None if there were no data that could be used."
    ]
    min_integer_share: Annotated[float | None, "The required share, or None."]
    data_faults: Annotated[
        tuple[str, ...],
        "Why data of the recipe could not be used for the comparison; empty if the first could.",
    ] = ()
    kernel_comparison: Annotated[
        KernelComparison | None,
        "Comparison of each kernel; None if outputs were not compared, or the target's runtime is not here.",
    ] = None
    min_output_sqnr_db: Annotated[
        float | None,
        "The least SQNR of an output against the graph as written; None if kernels or rules alone decide.",
    ] = None
    once: Annotated[
        Mapping[str, str],
        "By an operator's name, the loop that its work is counted for one step of, because only a run "
        "tells how many there are.",
    ] = field(default_factory=dict)
    saturation: Annotated[Saturation, "Which layers can saturate on x86 processors without VNNI."] = NOTHING
    saturates_here: Annotated[bool, "Whether this processor is such a one, and there are such layers."] = (
        False
    )
    require_portable: Annotated[bool, "Whether there may be none on any processor."] = False
    unproven: Annotated[
        str, "What only the target's runtime could prove, which is not installed; empty if it is."
    ] = ""

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
    def wrong_outputs(self) -> tuple[OutputDifference, ...]:
        """Outputs that are below the required SQNR by more than one step, or have another shape."""
        differences, limit = self.comparison.differences if self.comparison else (), self.min_output_sqnr_db
        return tuple(
            item for item in differences if limit is not None and item.sqnr_db < limit and item.steps > 1
        )

    @property
    def sums_pass(self) -> bool:
        """Whether no layer can saturate where it must not: on any processor, or in a runtime on this one."""
        fails_here = self.saturates_here and bool(self.runtime)
        return not fails_here and not (self.require_portable and self.saturation.saturating)

    @property
    def verdict(self) -> Literal["pass", "fail"]:
        """``"fail"`` if a rule is broken, the share too low, something computed wrongly, or sums saturate."""
        wrong = self.wrong_outputs or (self.kernel_comparison is not None and self.kernel_comparison.wrong)
        holds = not self.faults and self.share_passes is not False and not wrong and self.sums_pass
        return "pass" if holds else "fail"
