"""The noise that each layer adds on its own, in as few runs as tell the loud ones from the others."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.core.work.pooled_results import pooled_results
from ptq_cli.core.work.progress import ProgressCallback, RunProgress
from ptq_cli.pipeline.inspection.analysis_subject import pieces_of
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import OpRule, Target
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.stages.cut_stages import cut_stages
from ptq_cli.qdq.stages.staged_model import StagedModel
from ptq_cli.recovery.loudest import loudest

STAGE = "ranking layers"
LEVELS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
"""Times that the noise is halved: 3 to 48 dB. Where several layers alone make as much noise as there can be,
what the others add shows only when all of these are in float."""
QUIET = 2.0 ** -(LEVELS[-1] + 1)
"""Share of the noise that no layer in float would be needed for."""
FIRST = 8
"""Samples that all layers are measured on."""
MOST_ALONE = 128
"""More layers are first measured in groups, on one sample."""
LOUD_GROUPS = 16
"""So many of them at most are then measured layer by layer."""

Layers = tuple[str, ...]


@dataclass
class _Sums:
    """What some layers added to the outputs so far.

    Attributes:
        noise: squared differences by output.
        signal: of the same samples, by output.
    """

    noise: dict[str, float] = field(default_factory=dict)
    signal: dict[str, float] = field(default_factory=dict)

    def add(self, noise: Mapping[str, float], signal: Mapping[str, float]) -> None:
        """Count the outputs of a piece of the data."""
        for own, more in ((self.noise, noise), (self.signal, signal)):
            for name, value in more.items():
                own[name] = own.get(name, 0.0) + value

    @property
    def share(self) -> float:
        """The noise as a share of the signal, over all outputs."""
        return sum(noise / self.signal[name] for name, noise in self.noise.items() if self.signal[name] > 0.0)


class _Told:
    """Tells of how many runs on a sample, of all that are still planned, are done."""

    def __init__(self, progress: ProgressCallback, samples: int | None, first: int) -> None:
        self._progress, self._samples, self._first = progress, samples, first
        self._done = self._size = self._layers = 0
        self._total: int | None = None

    def begin(self, layers: int, size: int, begun: int, done: int) -> None:
        """Begin to measure layers on a piece of the data.

        Args:
            layers: how many.
            size: samples of the piece.
            begun: layers that were measured on the first samples.
            done: samples that will have been measured then, those of the piece among them.
        """
        self._done += self._layers * self._size
        self._layers, self._size = layers, size
        rest = self.total(still_measured(layers, begun, self._first, done), begun, done)
        self._total = self._done + layers * size + rest if rest is not None else None

    def tell(self, count: int) -> None:
        """Tell that so many of the layers are measured."""
        self._progress(RunProgress(STAGE, self._done + count * self._size, self._total))

    def total(self, left: int, begun: int, done: int) -> int | None:
        """Return how many runs are left; None if the number of samples is not known."""
        if self._samples is None:
            return None
        return planned_runs(left, begun, self._first, done, self._samples)


def still_measured(left: int, begun: int, first: int, done: int) -> int:
    """Return how many layers are measured further: half as many on twice as many samples.

    Args:
        left: layers that were measured on the last samples.
        begun: layers that were measured on the first ones.
        first: samples that all layers are measured on.
        done: samples that were measured.

    Example:
        >>> [still_measured(100, 100, 8, done) for done in (4, 8, 16, 32)]
        [100, 50, 25, 12]
    """
    return min(left, max(1, begun * first // (2 * done))) if done >= first else left


def planned_runs(left: int, begun: int, first: int, done: int, samples: int) -> int:
    """Return how many runs on a sample are still to come, if no more layers are found to be quiet.

    Example:
        >>> planned_runs(100, 100, 8, 0, 32)  # 8 on 100 layers, 8 on 50, 16 on 25 and fewer
        1528
        >>> planned_runs(128, 128, 1, 0, 512) < 1000  # and not 128 times 512
        True
    """
    runs = 0
    while done < samples:
        size = min(first, samples - done)
        runs, done = runs + left * size, done + size
        left = still_measured(left, begun, first, done)
    return runs


def layer_noise(
    twins: TwinGraphs,
    plan: Plan,
    target: Target,
    dataset: Dataset,
    inputs: Sequence[TensorSpec],
    *,
    batch_size: int,
    threads: int,
    progress: ProgressCallback,
) -> dict[str, float]:
    """Return the noise that each layer adds to the outputs when it alone is quantized.

    What only moves or clamps values is integer for its neighbors' sake, and is not measured. All layers are
    measured on the first samples. Twice as many samples measure half as many layers, the loudest; who is
    quiet keeps what was measured first. Of more than ``MOST_ALONE`` layers, groups of neighbors are measured
    first, and the layers of quiet groups count as alike.

    Args:
        twins: the float and the quantized model.
        plan: of the quantized one.
        target: whose rules made the plan.
        dataset: the samples to measure on.
        inputs: of the model.
        batch_size: samples that are run together, at most.
        threads: each runs a model of its own; the result does not depend on them.
        progress: is called after each run.

    Units:
        shares of what an output varies by, the sum over all outputs.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
    """
    outputs = [value.name or "" for value in twins.float_model.graph.outputs if value.const_value is None]
    stages = cut_stages(twins, {layer.name for layer in plan.layers if layer.quantized})
    staged = StagedModel(stages, twins.pairs, outputs[0], outputs)
    follow = {layer.name for layer in plan.layers if _follows(target.op.get(layer.op))}
    names = [name for name in staged.layers if name not in follow]
    many = len(names) > MOST_ALONE
    first = 1 if many else FIRST
    left: list[Layers] = neighbors(names, MOST_ALONE) if many else [(name,) for name in names]
    begun = len(left)
    found: dict[Layers, _Sums] = {layers: _Sums() for layers in left}
    done, told = 0, _Told(progress, dataset.count, first)
    with ThreadPoolExecutor(threads, "rank") as pool:
        progress(RunProgress(STAGE, 0, told.total(begun, begun, 0)))
        for piece in pieces_of(dataset, inputs, min(batch_size, first), staged):
            done += piece.size
            told.begin(len(left), piece.size, begun, done)
            _measure(staged, outputs, piece.inputs, left, found, pool, told.tell)
            if many and done == piece.size:
                left = split(left, {layers: found[layers].share for layers in left})
                begun = len(left)
                found |= {layers: _Sums() for layers in left}
                told.begin(len(left), piece.size, begun, done)
                _measure(staged, outputs, piece.inputs, left, found, pool, told.tell)
            shares = {layers: found[layers].share for layers in left}
            left = loudest(shares, still_measured(len(left), begun, first, done), QUIET)
    return _by_layer({layers: sums.share for layers, sums in found.items()})


def _measure(
    staged: StagedModel,
    outputs: Sequence[str],
    inputs: Mapping[str, Array],
    groups: Sequence[Layers],
    found: Mapping[Layers, _Sums],
    pool: ThreadPoolExecutor,
    tell: Callable[[int], None],
) -> None:
    """Add what each group of layers changes on a piece of the data."""
    base = staged.run(inputs, quantized=False)
    wanted = {name: staged.floats(name, base[name]) for name in outputs}
    signal = {name: _power(wanted[name]) for name in outputs}

    def alone(layers: Layers) -> dict[str, float]:
        changed = staged.changed_outputs(layers, base, quantized=True)
        return {name: _difference(wanted[name], changed[name]) for name in outputs}

    for layers, noise in zip(groups, pooled_results(pool, alone, groups, tell), strict=True):
        found[layers].add(noise, signal)


def _follows(rule: OpRule | None) -> bool:
    return rule is not None and rule.kind in ("same", "clamp")


def neighbors(names: Sequence[str], most: int) -> list[Layers]:
    """Return layers in at most so many groups, which follow one another.

    Example:
        >>> neighbors(["a", "b", "c", "d", "e"], 3)
        [('a', 'b'), ('c', 'd'), ('e',)]
    """
    size = -(-len(names) // most)
    return [tuple(names[start : start + size]) for start in range(0, len(names), size)]


def split(groups: Sequence[Layers], shares: Mapping[Layers, float]) -> list[Layers]:
    """Return the layers of the loudest groups one by one.

    Example:
        >>> split([("a", "b"), ("c", "d")], {("a", "b"): 1.0, ("c", "d"): 0.0})
        [('a',), ('b',)]
    """
    loud = set(loudest({layers: shares[layers] for layers in groups}, LOUD_GROUPS, QUIET))
    return [(name,) for layers in groups if layers in loud for name in layers]


def _by_layer(shares: Mapping[Layers, float]) -> dict[str, float]:
    """Return the noise of each layer; those of a group that was not split have equal parts of its own."""
    found: dict[str, float] = {}
    for layers, share in sorted(shares.items(), key=lambda item: -len(item[0])):
        found |= dict.fromkeys(layers, share / len(layers))
    return found


def _difference(wanted: Array, found: Array) -> float:
    """Return the squared difference; of integers how many differ.

    Edge case:
        What has another shape, NaN or infinities is noise as a whole: as loud as the signal.
    """
    if wanted.shape != found.shape:
        return _power(wanted)
    if wanted.dtype.kind != "f":
        return float(np.count_nonzero(wanted != found))
    noise = float(np.sum((wanted.astype(np.float64) - found.astype(np.float64)) ** 2))
    return noise if np.isfinite(noise) else _power(wanted)


def _power(array: Array) -> float:
    return float(array.size) if array.dtype.kind != "f" else float(np.sum(array.astype(np.float64) ** 2))
