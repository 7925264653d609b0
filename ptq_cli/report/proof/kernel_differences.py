"""Compares each integer kernel with its operators as they are written, on the same integers."""

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array, is_array
from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.qdq.proof.kernels_apart import KernelUnit, kernels_apart
from ptq_cli.report.proof.optimized_outputs import OutputSums
from ptq_cli.report.proof.verification import KernelComparison, KernelDifference
from ptq_cli.runtime.sessions.block_levels import EXACT
from ptq_cli.runtime.sessions.session import Session
from ptq_cli.runtime.turns import Batch, batch_size

STAGE = "comparing kernels"


def compare_kernels(
    model: ir.Model,
    batches: Iterable[Batch],
    grids: Mapping[str, float],
    limit: float,
    *,
    threads: int = 0,
    progress: ProgressCallback = silent,
) -> KernelComparison:
    """Run the graph as it is written, and each kernel alone on the integers that it met there.

    A kernel rounds once where the graph as written rounds a float: on the same integers they are at most one
    step apart, and rarely. These steps add up along a network, so that outputs can be far apart although
    every kernel is right. A kernel that saturates, or computes something else, is many steps apart alone.
    Weights in blocks are computed at accuracy level 0: what another level rounds is the session's choice.

    Args:
        model: the quantized graph; is left as it is.
        batches: inputs by name; one sample each takes the least memory.
        grids: the scale of each output that is quantized, by its name.
        limit: the largest difference that passes, in steps.
        threads: of ONNX Runtime.
        progress: is called after each batch.

    Units:
        steps of 8 bits over the range of the integers, or of an output that is not quantized.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
    """
    progress(Progress(STAGE, 0, None))
    cut = kernels_apart(model)
    whole = Session(cut.whole, threads=threads, optimize=False)
    apart = Session(cut.apart, threads=threads, accuracy_level=EXACT)
    found = {unit.tensor: _Sums(unit, grids.get(unit.tensor)) for unit in cut.units}
    samples = 0
    for batch in batches:
        written = dict(zip(whole.outputs, whole.run(batch), strict=True))
        feeds = {**batch, **{name: written[tensor] for tensor, name in cut.inputs.items()}}
        computed = dict(zip(apart.outputs, apart.run(feeds), strict=True))
        for tensor, sums in found.items():
            sums.add(written[tensor], computed[tensor])
        samples += batch_size(batch)
        progress(Progress(STAGE, samples, None))
    differences = [item for sums in found.values() if (item := sums.difference()).steps]
    worst_first = tuple(sorted(differences, key=lambda item: (-item.steps, -(item.share or 0.0))))
    return KernelComparison(samples=samples, kernels=len(found), differences=worst_first, limit=limit)


class _Sums:
    """The differences of one unit over the batches so far."""

    def __init__(self, unit: KernelUnit, scale: float | None) -> None:
        self._unit, self._scale = unit, scale
        self._floats = OutputSums()
        self._largest = self._differing = self._count = 0

    def add(self, written: Array, computed: Array) -> None:
        if not is_array(written):
            return
        self._count += written.size
        if not self._unit.step:
            if written.dtype.kind == "f":
                self._floats.add(written, computed)
            return
        difference = np.abs(written.astype(np.int64) - computed.astype(np.int64))
        self._largest = max(self._largest, int(difference.max(initial=0)))
        self._differing += int(np.count_nonzero(difference))

    def difference(self) -> KernelDifference:
        unit = self._unit
        if unit.step:
            steps, share = self._largest / unit.step, self._differing / max(1, self._count)
        else:
            steps, share = self._floats.difference(unit.tensor, self._scale).steps, None
        return KernelDifference(node=unit.node, op=unit.op, tensor=unit.tensor, steps=steps, share=share)
