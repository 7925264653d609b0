"""Compares the outputs of the graph that a runtime runs with those of the graph as written."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from ptq_cli.core.tensors import Array, is_array
from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.report.proof.verification import OutputDifference
from ptq_cli.runtime.engines.engine import Engine
from ptq_cli.runtime.engines.onnxruntime_engine import ONNX_RUNTIME
from ptq_cli.runtime.sessions.session import Session
from ptq_cli.runtime.turns import Batch, batch_size

STEPS = 255
"""Of an 8-bit grid."""


def compare_optimized(
    model: bytes | StoredModel,
    batches: Iterable[Batch],
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

    Args:
        model: serialized.
        batches: inputs by name.
        grids: the scale of each output that is quantized, by its name.
        threads: of one operator.
        engine: the runtime; as it is written, the graph runs with ONNX Runtime, without optimizations.
        progress: is called after each batch.

    Edge case:
        NaN in both is not a difference; NaN in one of them is an infinite difference. Outputs of other
        integers than a quantized output's, of booleans, and sequences are ignored.

    Raises:
        RuntimeFailedError: the runtime failed.
    """
    stage = "comparing outputs"
    progress(Progress(stage, 0, None))
    written, optimized = (
        Session(model, threads=threads, optimize=False),
        engine.open(model, threads=threads),
    )
    sums = {name: OutputSums() for name in written.outputs}
    samples = 0
    for batch in batches:
        for name, one, other in zip(written.outputs, written.run(batch), optimized.run(batch), strict=True):
            if is_array(one) and (one.dtype.kind == "f" or name in grids):
                sums[name].add(one, other)
        samples += batch_size(batch)
        progress(Progress(stage, samples, None))
    differences = tuple(item.difference(name, grids.get(name)) for name, item in sums.items() if item.count)
    return differences, samples


class OutputSums:
    """The sums for one output over the batches so far."""

    def __init__(self) -> None:
        self.count = 0
        self._absolute = self._signal = self._noise = 0.0
        self._low, self._high = math.inf, -math.inf

    def add(self, written: Array, optimized: Array) -> None:
        """Add the output of a batch."""
        one, other = (np.atleast_1d(array).astype(np.float64) for array in (written, optimized))
        with np.errstate(invalid="ignore"):
            difference = np.abs(one - other)
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
        """Return the difference; ``scale`` is the output's own, or None if it is not quantized."""
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
