"""The noise that each layer adds on its own, in as few runs as tell the loud ones from the others.

A run of the model with one layer quantized shows it, and there are too many layers for one each on many
samples. So all are measured on few samples and the loud ones on more; and of a model with very many layers,
groups of neighbors are run, whose noise is divided among the layers as they make it where the group ends.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import isqrt

import numpy as np

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.progress import ProgressCallback, RunProgress, pooled_results
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.pipeline.evaluation.analysis_subject import pieces_of
from ptq_cli.pipeline.tuning.layer_ranking import LEVELS
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.worth import PER_NODE
from ptq_cli.qdq.cut_stages import cut_stages
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import StagedModel, Tensors
from ptq_cli.recovery.range_effects import loudest

STAGE = "ranking layers"
QUIET = 2.0 ** -(LEVELS[-1] + 1)
"""Share of the noise that no layer in float would be needed for."""
FIRST = 8
"""Samples that all layers are measured on."""
MOST_ALONE = 128
"""Of more layers the noise is estimated."""
FIRST_OF_MANY, LOUD_OF_MANY = 4, 64
"""The samples that it is estimated on, and how many layers are then measured, at most."""

Layers = tuple[str, ...]
Noise = Mapping[str, float]
"""Squared differences, or squares, by output."""


@dataclass
class _Sums:
    """What a layer added to the outputs so far, and the squares of these, by output."""

    noise: dict[str, float] = field(default_factory=dict)
    signal: dict[str, float] = field(default_factory=dict)

    def add(self, noise: Noise, signal: Noise) -> None:
        """Count the outputs of a piece of the data."""
        for own, more in ((self.noise, noise), (self.signal, signal)):
            for name, value in more.items():
                own[name] = own.get(name, 0.0) + value

    @property
    def share(self) -> float:
        """The noise as a share of the signal, over all outputs."""
        return share_of(self.noise, self.signal)


def share_of(noise: Noise, signal: Noise) -> float:
    """Return noise as a share of the signal, the sum over all tensors; those that are 0 have none.

    Example:
        >>> share_of({"a": 1.0, "b": 3.0, "zero": 1.0}, {"a": 4.0, "b": 4.0, "zero": 0.0})
        1.0
    """
    return sum(value / signal[name] for name, value in noise.items() if signal[name] > 0.0)


def still_measured(left: int, begun: int, first: int, done: int) -> int:
    """Return how many layers are measured further: half as many on twice as many samples.

    ``left`` layers were measured on the last samples, ``begun`` on the first ones; all are on ``first``
    samples.

    Example:
        >>> [still_measured(100, 100, 8, done) for done in (4, 8, 16, 32)]
        [100, 50, 25, 12]
    """
    return min(left, max(1, begun * first // (2 * done))) if done >= first else left


Round = tuple[int, int]
"""How many layers are run, one at a time, on how many samples at once."""


def planned_rounds(left: int, begun: int, first: int, done: int, samples: int) -> list[Round]:
    """Return what is still to be run, if no more layers are found to be quiet.

    Example:
        >>> planned_rounds(100, 100, 8, 0, 32)
        [(100, 8), (50, 8), (25, 8), (16, 8)]
    """
    rounds = []
    while done < samples:
        size = min(first, samples - done)
        rounds.append((left, size))
        done += size
        left = still_measured(left, begun, first, done)
    return rounds


def _rest(left: int, begun: int, first: int, done: int, samples: int | None) -> list[Round] | None:
    return planned_rounds(left, begun, first, done, samples) if samples is not None else None


class _Told:
    """Tells how much is done of the work that is still planned: that of the stages which runs run again."""

    def __init__(self, staged: StagedModel, twins: TwinGraphs, progress: ProgressCallback) -> None:
        self._staged, self._progress = staged, progress
        products = multiply_accumulates(twins.float_model).counts
        self._stages = [
            sum((products.get(name) or 0) + PER_NODE for name in stage.nodes) for stage in staged.stages
        ]
        self._done = self._runs = 0
        self._planned: tuple[int, int] | None = None
        self._works: list[int] = []

    def work_of(self, layers: Layers, last: int | None = None) -> int:
        """Return the work of a run with these layers changed, on one sample; up to the stage ``last``."""
        behind = self._staged.behind(*layers)
        return sum(self._stages[index] for index in behind if last is None or index <= last)

    def begin(self, works: Sequence[int], rest: Sequence[Round] | None, mean: int) -> None:
        """Begin with runs of so much work each.

        The ``rest`` will follow, if it is known how much that is, each run with a ``mean`` work on a sample.
        """
        self._done, self._runs = self._done + sum(self._works), self._runs + len(self._works)
        self._works, self._planned = list(works), None
        if rest is not None:
            runs, samples = sum(count for count, _ in rest), sum(count * size for count, size in rest)
            self._planned = self._runs + len(works) + runs, self._done + sum(works) + samples * mean
        self.tell(0)

    def tell(self, count: int) -> None:
        """Tell that so many of the runs are done."""
        runs, work = self._planned or (None, None)
        done = self._done + sum(self._works[:count])
        self._progress(RunProgress(STAGE, done, work, number=self._runs + count, runs=runs))


def layer_noise(
    twins: TwinGraphs,
    integer: Collection[str],
    target: Target,
    dataset: Dataset,
    inputs: Sequence[TensorSpec],
    *,
    batch_size: int,
    threads: int,
    progress: ProgressCallback,
    most_alone: int = MOST_ALONE,
    loud: int = LOUD_OF_MANY,
) -> dict[str, float]:
    """Return the noise that each ``integer`` layer adds to the outputs when it alone is quantized.

    What only moves or clamps values is integer for its neighbors' sake, and is not measured. All layers are
    measured on the first samples. Twice as many samples measure half as many layers, the loudest; who is
    quiet keeps what was measured first. Of more than ``most_alone`` layers the noise is estimated first, and
    only so many ``loud`` ones are measured.

    Each thread runs a model of its own; the result does not depend on them.

    Units:
        shares of what an output varies by, the sum over all outputs.
    """
    outputs = [value.name or "" for value in twins.float_model.graph.outputs if value.const_value is None]
    stages = cut_stages(twins, integer)
    staged = StagedModel(stages, twins.pairs, outputs[0], outputs)
    follows = {name for name, rule in target.op.items() if rule.kind in ("same", "clamp")}
    follow = {node.name for node in twins.float_model.graph if node.op_type in follows}
    names = [name for name in staged.layers if name not in follow]
    # Of a model with very many layers a run for each would take hours.
    many = len(names) > most_alone
    first, samples = FIRST_OF_MANY if many else FIRST, dataset.count
    sums: dict[str, _Sums] = {}
    found: dict[str, float] = {}
    left, begun, done = names, loud if many else len(names), 0
    with ThreadPoolExecutor(threads, "rank") as pool:
        runs = _Runs(staged, outputs, pool, _Told(staged, twins, progress))
        for piece in pieces_of(dataset, inputs, min(batch_size, first), staged):
            if not left:
                break
            runs.run_float(piece.inputs, piece.size)
            if many and not done:
                found = runs.estimate(left, _rest(begun, begun, first, 0, samples))
                left = loudest(found, begun, QUIET)
                begun = len(left)
            done += piece.size
            after = still_measured(len(left), begun, first, done)
            rest = _rest(after, begun, first, done, samples)
            for name, noise in zip(left, runs.alone(left, rest), strict=True):
                sums.setdefault(name, _Sums()).add(noise, runs.signal)
            found |= {name: sums[name].share for name in left}
            # Quiet layers are not measured on further samples: only the order of the loud ones matters.
            left = loudest({name: found[name] for name in left}, after, QUIET)
    return found


class _Runs:
    """Runs of a model on a piece of the data, with some of its layers quantized."""

    def __init__(
        self, staged: StagedModel, outputs: Sequence[str], pool: ThreadPoolExecutor, told: _Told
    ) -> None:
        self._staged, self._outputs, self._pool, self._told = staged, outputs, pool, told
        self._base: Tensors = {}
        self._size = 0
        self.signal: dict[str, float] = {}

    def run_float(self, inputs: Mapping[str, Array], size: int) -> None:
        """Run the float model on a piece of the data, that further runs are compared with."""
        self._base, self._size = self._staged.run(inputs, quantized=False), size
        self.signal = {name: _power(self._floats(name)) for name in self._outputs}

    def alone(self, layers: Sequence[str], rest: Sequence[Round] | None) -> list[dict[str, float]]:
        """Return what each layer changes of the outputs; the ``rest`` will follow."""
        return self._each([(name,) for name in layers], rest)

    def estimate(self, layers: Sequence[str], rest: Sequence[Round] | None) -> dict[str, float]:
        """Return about what each layer adds to the outputs, from a run for each group of neighbors.

        The noise of a group is divided among its layers by the shares that each adds to the tensors which
        are read behind the group: so far, each layer is followed by itself.
        """
        staged, size = self._staged, self._size
        # As many groups as they have layers: then both kinds of runs are about the same work.
        groups = neighbors(sorted(layers, key=staged.layers.__getitem__), isqrt(len(layers)))
        ends = {name: staged.layers[group[-1]] for group in groups for name in group}
        near = [size * self._told.work_of((name,), ends[name]) for name in ends]
        mean = sum(map(self._told.work_of, groups)) // len(groups)
        self._told.begin(near, [(len(groups), size), *rest] if rest is not None else None, mean)
        shares = pooled_results(self._pool, lambda name: self._near(name, ends[name]), ends, self._told.tell)
        own = dict(zip(ends, shares, strict=True))
        found: dict[str, float] = {}
        for group, noise in zip(groups, self._each(groups, rest), strict=True):
            share, parts = share_of(noise, self.signal), {name: own[name] for name in group}
            whole = sum(parts.values())
            found |= {
                name: share * part / whole if whole else share / len(group) for name, part in parts.items()
            }
        return found

    def _each(self, groups: Sequence[Layers], rest: Sequence[Round] | None) -> list[dict[str, float]]:
        works = [self._told.work_of(group) for group in groups]
        mean = sum(works) // max(1, len(works))
        self._told.begin([work * self._size for work in works], rest, mean)
        return pooled_results(self._pool, self._changed, groups, self._told.tell)

    def _changed(self, layers: Layers) -> dict[str, float]:
        changed = self._staged.changed_outputs(layers, self._base, quantized=True)
        return {name: _difference(self._floats(name), changed[name]) for name in self._outputs}

    def _near(self, layer: str, last: int) -> float:
        """Return the noise of a layer in the tensors that are read behind a stage, as shares of these."""
        changed = self._staged.changed_until(layer, self._base, last)
        wanted = {name: self._floats(name) for name in changed}
        noise = {name: _difference(wanted[name], array) for name, array in changed.items()}
        return share_of(noise, {name: _power(array) for name, array in wanted.items()})

    def _floats(self, name: str) -> Array:
        return self._staged.floats(name, self._base[name])


def neighbors(names: Sequence[str], most: int) -> list[Layers]:
    """Return layers in at most so many groups, which follow one another.

    Example:
        >>> neighbors(["a", "b", "c", "d", "e"], 3)
        [('a', 'b'), ('c', 'd'), ('e',)]
    """
    size = -(-len(names) // most)
    return [tuple(names[start : start + size]) for start in range(0, len(names), size)]


def _difference(wanted: Array, found: Array) -> float:
    """Return the squared difference; of integers how many differ.

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
