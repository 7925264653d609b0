"""Result of ``ptq verify``: operators, structure, saturation, and the graph as a runtime optimizes it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import onnx_ir as ir

from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.evaluation.document.report_document import NO_SATURATION, Saturation
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.graph_reading import every_node
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.proof.kernels_apart import KernelUnit, kernels_apart
from ptq_cli.qdq.proof.operators import OperatorProof, prove_operators
from ptq_cli.qdq.proof.portable_sums import portable_sums
from ptq_cli.qdq.proof.target_faults import Fault
from ptq_cli.qdq.read.quantized_file import is_quantized, named
from ptq_cli.runtime.engine import Engine
from ptq_cli.runtime.engine_registry import EXACT_BLOCKS, ONNX_RUNTIME
from ptq_cli.runtime.products import is_signed_exact
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.timing import Inputs, batch_size


def saturation_of(model: ir.Model, target: Target) -> Saturation:
    """Layers of a file that can saturate, of those that a target's rules compute in integers."""
    if not is_quantized(model):
        return NO_SATURATION
    graph = named(model.clone())
    nothing = MultiplyAccumulates({node.name or "": 0 for node in every_node(graph.graph)}, {}, {})
    return Saturation.of(portable_sums(graph, target, prove_operators(graph, target, nothing, None)))


def saturation_here(model: ir.Model, target: Target) -> Saturation:
    """Layers of a file that can saturate as ptq runs it on this processor."""
    return saturation_of(model, target) if _adds_in_16_bits(target) else NO_SATURATION


def saturates_here(saturation: Saturation, target: Target) -> bool:
    """Whether layers can saturate as ptq runs a file on this processor."""
    return bool(saturation.saturating) and _adds_in_16_bits(target)


def _adds_in_16_bits(target: Target) -> bool:
    """Tell whether the kernels that a target's files are run with saturate; OpenVINO's do as ONNX Runtime's.

    Files of other runtimes are run with exact sums if their activations are signed (``AS_WRITTEN``).
    """
    is_exact = not target.runtime and target.activation.integers.signed
    return not is_exact and not is_signed_exact()


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
        bool, "Whether the runtime is this far off only where it compiles the model for any sizes."
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
    saturation: Annotated[Saturation, "Which layers can saturate on x86 processors without VNNI."] = (
        NO_SATURATION
    )
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


GRID_STEPS = 255  # of an 8-bit grid
DOUBTFUL_DB = 30.0  # where two graphs differ only by rounding, their SQNR is usually above this
CLEAR_DB = 60.0  # above this no integer differs by more than a thousandth of what reaches an output
COMPARING_STAGE = "comparing kernels"


def compare_optimized(
    model: bytes | StoredModel,
    batches: Iterable[Inputs],
    grids: Mapping[str, float],
    *,
    threads: int,
    engine: Engine = ONNX_RUNTIME,
    progress: ProgressCallback = silent,
) -> tuple[tuple[OutputDifference, ...], int]:
    """Run a model as it is written and as a runtime optimizes it; return differences and samples.

    The graph as written computes each operator in float between its DequantizeLinear and its QuantizeLinear;
    the optimized graph computes in integers. They round differently, so that some values of a kernel are one
    step apart, and more further on: see ``compare_kernels`` for what a kernel does alone.

    ``grids`` has the scale of each output that is quantized. As it is written, the graph runs with ONNX
    Runtime, without optimizations.

    Edge case: NaN in both is not a difference; NaN in one of them, or another shape, is an infinite one.
        Outputs of other integers than a quantized output's, of booleans, and sequences are ignored.
    """
    stage = "comparing outputs"
    progress(Progress(stage, 0, None))
    written = Session(model, threads=threads, optimize=False)
    forms = engine.open_forms(model, threads=threads)
    sums = [{name: OutputSums() for name in written.outputs} for _ in forms]
    samples = 0
    for batch in batches:
        wanted = written.run(batch)
        for own, optimized in zip(sums, forms, strict=True):
            for name, one, other in zip(written.outputs, wanted, optimized.run(batch), strict=True):
                if is_array(one) and (one.dtype.kind == "f" or name in grids):
                    own[name].add(one, other)
        samples += batch_size(batch)
        progress(Progress(stage, samples, None))
    counted = [name for name, item in sums[0].items() if item.count]
    return tuple(
        _worst([own[name].difference(name, grids.get(name)) for own in sums]) for name in counted
    ), samples


def _worst(forms: Sequence[OutputDifference]) -> OutputDifference:
    """Difference of the form that is farthest off, by more than another order of sums explains."""
    fitted, worst = forms[0], min(forms, key=lambda item: item.sqnr_db)
    is_another = worst.sqnr_db < min(fitted.sqnr_db, DOUBTFUL_DB)
    return replace(worst, open_sizes=True) if is_another else fitted


class OutputSums:
    """The sums for one output over the batches so far."""

    def __init__(self) -> None:
        self.count = 0
        self._absolute = self._signal = self._noise = 0.0
        self._low, self._high = math.inf, -math.inf

    def add(self, written: Array, optimized: Array) -> None:
        """Add the output of a batch."""
        one, other = (np.atleast_1d(array).astype(np.float64) for array in (written, optimized))
        if one.shape != other.shape:
            other = np.full(one.shape, math.nan)
        with np.errstate(invalid="ignore"):
            difference = np.abs(one - other)
        if written.shape == optimized.shape:
            difference[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
        difference[np.isnan(difference)] = math.inf
        finite = one[np.isfinite(one)]
        self.count += one.size
        if difference.size:
            self._absolute = max(self._absolute, float(difference.max()))
            self._noise += float(np.sum(difference**2))
        if finite.size:
            self._signal += float(np.sum(finite**2))
            self._low, self._high = min(self._low, float(finite.min())), max(self._high, float(finite.max()))

    def difference(self, name: str, scale: float | None) -> OutputDifference:
        """Difference; ``scale`` is the output's own, or None if it is not quantized."""
        width = self._high - self._low
        step = (
            scale if scale is not None else width / GRID_STEPS if math.isfinite(width) and width > 0 else 1.0
        )
        return OutputDifference(
            output=name, absolute=self._absolute, step=step, on_grid=scale is not None, sqnr_db=self._sqnr()
        )

    def _sqnr(self) -> float:
        if self._noise == 0:
            return math.inf
        ratio = self._signal / self._noise
        return 10 * math.log10(ratio) if ratio > 0 else -math.inf


def compare_kernels(
    model: ir.Model,
    batches: Iterable[Inputs],
    grids: Mapping[str, float],
    *,
    threads: int = 1,
    engine: Engine = EXACT_BLOCKS,
    progress: ProgressCallback = silent,
) -> KernelComparison:
    """Run the graph as it is written, and each kernel alone on the integers that it met there.

    A kernel rounds once where the graph as written rounds a float: on the same integers they are at most one
    step apart, and rarely. These steps add up along a network, so that outputs can be far apart although
    every kernel is right. A kernel that saturates, or computes something else, is many steps apart alone.
    Weights in blocks are computed at accuracy level 0: what another level rounds is the session's choice.

    ``grids`` has the scale of each output that is quantized.
    """
    progress(Progress(COMPARING_STAGE, 0, None))
    cut = kernels_apart(model)
    whole = Session(cut.whole, threads=threads, optimize=False)
    apart = engine.open(cut.apart, threads=threads)
    found = {unit.tensor: _Sums(unit, grids.get(unit.tensor)) for unit in cut.units}
    samples = 0
    for batch in batches:
        written = dict(zip(whole.outputs, whole.run(batch), strict=True))
        feeds = {**batch, **{name: written[tensor] for tensor, name in cut.inputs.items()}}
        computed = dict(zip(whole.outputs, apart.run(feeds), strict=True))
        for tensor, sums in found.items():
            sums.add(written[tensor], computed[tensor])
        samples += batch_size(batch)
        progress(Progress(COMPARING_STAGE, samples, None))
    differences = [item for sums in found.values() if (item := sums.difference()).steps]
    worst_first = tuple(sorted(differences, key=lambda item: (-item.steps, -(item.share or 0.0))))
    return KernelComparison(samples=samples, kernels=len(found), differences=worst_first, limit=KERNEL_STEPS)


class _Sums:
    """The differences of one unit over the batches so far."""

    def __init__(self, unit: KernelUnit, scale: float | None) -> None:
        self._unit, self._scale = unit, scale
        self._floats = OutputSums()
        self._largest: float = 0.0
        self._differing = self._count = 0

    def add(self, written: Array, computed: Array) -> None:
        if not is_array(written):
            return
        self._count += written.size
        if not self._unit.step:
            if written.dtype.kind == "f":
                self._floats.add(written, computed)
            return
        if written.shape != computed.shape:
            self._largest, self._differing = math.inf, self._differing + written.size
            return
        difference = np.abs(written.astype(np.int64) - computed.astype(np.int64))
        difference[difference <= self._unit.rounding] = 0
        self._largest = max(self._largest, int(difference.max(initial=0)))
        self._differing += int(np.count_nonzero(difference))

    def difference(self) -> KernelDifference:
        unit = self._unit
        if unit.step:
            steps, share = self._largest / unit.step, self._differing / max(1, self._count)
        else:
            steps, share = self._floats.difference(unit.tensor, self._scale).steps, None
        return KernelDifference(node=unit.node, op=unit.op, tensor=unit.tensor, steps=steps, share=share)
