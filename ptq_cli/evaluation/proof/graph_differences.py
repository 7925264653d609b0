"""Graph as a runtime optimizes it, compared with the graph as written: outputs, and kernel by kernel."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.evaluation.proof.verification import (
    KERNEL_STEPS,
    KernelComparison,
    KernelDifference,
    OutputDifference,
)
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.qdq.proof.kernels_apart import KernelUnit, kernels_apart
from ptq_cli.runtime.engine import Engine
from ptq_cli.runtime.onnxruntime_engine import EXACT_BLOCKS, ONNX_RUNTIME
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.timing import Inputs, batch_size

STEPS = 255  # of an 8-bit grid
DOUBTFUL_DB = 30.0  # where two graphs differ only by rounding, their SQNR is usually above this
CLEAR_DB = 60.0  # above this no integer differs by more than a thousandth of what reaches an output
STAGE = "comparing kernels"


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

    Edge case:
        NaN in both is not a difference; NaN in one of them, or another shape, is an infinite one. Outputs of
        other integers than a quantized output's, of booleans, and sequences are ignored.
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
        step = scale if scale is not None else width / STEPS if math.isfinite(width) and width > 0 else 1.0
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
    progress(Progress(STAGE, 0, None))
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
        progress(Progress(STAGE, samples, None))
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
