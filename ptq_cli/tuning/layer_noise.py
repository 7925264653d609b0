"""The noise that each layer adds on its own, and which layers to leave in float, the cheapest first.

A run of the model with one layer quantized shows it, and there are too many layers for one each on many
samples. So all are measured on few samples, and the louder a layer is, on the more.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.progress import ProgressCallback, RunProgress, pooled_results
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.pipeline.evaluation.evaluation_set import pieces_of
from ptq_cli.plan.cost_benefit import COSTS, float_costs
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import StagedModel, Tensors, cut_stages
from ptq_cli.recipe.sections import SIZE
from ptq_cli.recover.range_effects import loudest

# Times that the noise is halved: 3 to 48 dB. Where several layers alone make as much noise as there can be,
# what the others add shows only when all of these are in float.
LEVELS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
_LEAST_SHARE = 1e-4  # of the whole cost: what a layer costs that saves time in float


LOUDEST = 1e30  # what noise that is not finite counts as


@dataclass(frozen=True, kw_only=True)
class LayerRanking:
    """What is known of the layers of a candidate.

    Attributes:
        dynamic: those that could find ranges at each run.
        weight_only: those of which only the weights could be integers.
    """

    noise: dict[str, float]
    cost: dict[str, float]
    dynamic: tuple[str, ...]
    weight_only: tuple[str, ...]

    def levels(
        self, among: Collection[str] | None = None, levels: Collection[int] = LEVELS
    ) -> tuple[tuple[str, ...], ...]:
        """Which layers to change, more and more; see ``layers_by_level``."""
        noise = {name: value for name, value in self.noise.items() if among is None or name in among}
        most = len(noise) - (among is None)  # Of layers in float some are left.
        return layers_by_level(noise, self.cost, levels, most=most)


def layer_costs(model: ir.Model, plan: Plan, names: Collection[str], prefer: str) -> dict[str, float]:
    """Cost of each layer if it stays in float.

    With ``"size"`` as many as its weights; otherwise the products that it sums up, and what it takes to
    convert tensors that pass between it and its neighbors as integers.
    """
    if prefer == SIZE:
        counts: Mapping[str, int | None] = {layer.name: layer.parameters for layer in plan.layers}
    else:
        counts = float_costs(model, plan, names)
    found = {name: float(counts.get(name) or 0) for name in names}
    # A layer whose conversions cost more than it saves has no cost in float; a division by 0 would rank
    # it before all others, however quiet it is.
    least = _LEAST_SHARE * sum(max(cost, 0.0) for cost in found.values()) or 1.0
    return {name: max(cost, least) for name, cost in found.items()}


def layers_by_level(
    noise: Mapping[str, float], cost: Mapping[str, float], levels: Collection[int], *, most: int
) -> tuple[tuple[str, ...], ...]:
    """Which layers to leave in float so that a half, a quarter, an eighth … of the noise is left.

    Layers come in the order of what they take away for what they cost.

    ``levels`` are how many times the noise is halved; more than ``most`` layers are not chosen.

    Example:
        >>> layers_by_level({"a": 6.0, "b": 3.0, "c": 1.0}, {"a": 2.0, "b": 1.0, "c": 1.0}, (1, 2, 9), most=2)
        (('a',), ('a', 'b'))
    """
    # By name where equal, so that threads and sets cannot change the order.
    order = sorted(noise, key=lambda name: (-noise[name] / cost[name], name))
    total, found = sum(noise.values()), []
    for level in levels:
        left, count = total, 0
        while count < len(order) and left > total / 2**level:
            left -= noise[order[count]]
            count += 1
        layers = tuple(order[:count])
        if 0 < count <= most and layers not in found:
            found.append(layers)
    return tuple(found)


_STAGE = "ranking layers"
QUIET_SHARE = 2.0 ** -(LEVELS[-1] + 1)  # share of the noise that no layer in float would be needed for
_ROUND = 256  # runs of a layer on a sample, until twice as many samples were seen
ROOT = 1 / 8  # power of the mean of samples: 1 would be the arithmetic mean, 0 the geometric one
_Noise = Mapping[str, float]  # squared differences, or squares, by output
Combine = Callable[[Sequence[float]], float]  # makes one of the shares of noise of several samples


def typical(shares: Sequence[float]) -> float:
    """The noise of a usual sample, from the shares of all: the 8th power of the mean of 8th roots.

    It is close to the geometric mean, but a sample without any noise does not outvote all others.

    Example:
        >>> round(typical([1e-4] * 8), 9), round(typical([1e-4] * 7 + [1.0]), 4), typical([])
        (0.0001, 0.0007, 0.0)
    """
    roots = [share**ROOT for share in shares]
    return (math.fsum(roots) / len(roots)) ** (1 / ROOT) if roots else 0.0


def measured_next(left: int, done: int, runs: int) -> int:
    """How many of the layers that are ``left`` the next samples measure; of the first ones all.

    Example:
        >>> [measured_next(300, done, 256) for done in (0, 1, 2, 4, 8, 16)]
        [300, 256, 128, 64, 32, 16]
    """
    return min(left, max(1, runs >> (done.bit_length() - 1))) if done else left


class _Told:
    """Tells how much is done of the work that is still planned: that of the stages which runs run again."""

    def __init__(self, staged: StagedModel, twins: TwinGraphs, runs: int, progress: ProgressCallback) -> None:
        self._each, self._progress = runs, progress
        products = multiply_accumulates(twins.float_model).counts
        stages = [
            sum((products.get(name) or 0) + COSTS.per_node for name in stage.nodes) for stage in staged.stages
        ]
        self._works = {name: sum(stages[index] for index in staged.behind(name)) for name in staged.layers}
        self._done = self._runs = 0
        self._planned: tuple[int, int] | None = None
        self._now: list[int] = []

    def begin(self, layers: Sequence[str], size: int, done: int, samples: int | None) -> None:
        """Begin runs of these layers on so many samples; more follow on the rest behind those ``done``."""
        self._done, self._runs = self._done + sum(self._now), self._runs + len(self._now)
        self._now = [size * self._works[name] for name in layers]
        if samples is not None:
            left, runs, work = len(layers), len(layers), sum(self._now)
            mean = work // (size * left)
            for later in range(done + size, samples, size):
                left = measured_next(left, later, self._each)
                runs, work = runs + left, work + left * mean * min(size, samples - later)
            self._planned = self._runs + runs, self._done + work
        self.tell(0)

    def tell(self, count: int) -> None:
        runs, work = self._planned or (None, None)
        done = self._done + sum(self._now[:count])
        self._progress(RunProgress(_STAGE, done, work, number=self._runs + count, runs=runs))


def layer_noise(
    twins: TwinGraphs,
    integer: Collection[str],
    target: Target,
    dataset: Dataset,
    inputs: Sequence[TensorSpec],
    *,
    threads: int,
    progress: ProgressCallback,
    runs: int = _ROUND,
    quiet: float = QUIET_SHARE,
    combine: Combine = typical,
) -> dict[str, float]:
    """The noise that each ``integer`` layer adds to the outputs when it alone is quantized.

    What only moves or clamps values is integer for its neighbors' sake, and is not measured. All layers are
    measured on the first samples, and the loudest on more. The quiet ones are taken to follow them.

    Of several samples it is what ``combine`` makes of their noise, and not the sum: where an answer is a
    choice, as behind a Softmax, nearly all of that would be made where a layer happens to tip it. ``runs``
    are of a layer on a sample, until twice as many samples were seen.

    Each thread runs variants of its own; the result does not depend on them.

    Units: shares of what an output varies by, the sum over all outputs.
    """
    outputs = [value.name or "" for value in twins.float_model.graph.outputs if value.const_value is None]
    staged = StagedModel(cut_stages(twins, integer), twins.pairs, outputs[0], outputs)
    follows = {name for name, rule in target.op.items() if rule.kind in ("same", "clamp")}
    follow = {node.name for node in twins.float_model.graph if node.op_type in follows}
    left = [name for name in staged.layers if name not in follow]
    heard = _Heard(staged, outputs, combine)
    told, found, done = _Told(staged, twins, runs, progress), dict[str, float](), 0
    with ThreadPoolExecutor(threads, "rank") as pool:
        # One sample at a time, as far as a model permits it: each has one voice.
        for piece in pieces_of(dataset, inputs, 1, staged):
            if done:  # Quiet layers are heard no more: only the order of the loud ones matters.
                most = measured_next(len(left), done, runs)
                left = loudest({name: found[name] for name in left}, most, quiet) or left
            if not left:
                break
            told.begin(left, piece.size, done, dataset.count)
            heard.run_float(piece.inputs)
            noises = pooled_results(pool, heard.alone, left, told.tell)
            new = heard.add(dict(zip(left, noises, strict=True)))
            before, now = (math.fsum(shares.get(name, 0.0) for name in left) for shares in (found, new))
            # One sample may be easier than another, for all layers: then who was heard on it alone is louder.
            grown = now / before if before > 0.0 else 1.0
            found = {name: share * grown for name, share in found.items()} | new
            done += piece.size
    return found


class _Heard:
    """The noise of layers on the pieces of the data so far."""

    def __init__(self, staged: StagedModel, outputs: Sequence[str], combine: Combine) -> None:
        self._staged, self._outputs, self._combine = staged, outputs, combine
        self._base: Tensors = {}
        self._signals: list[_Noise] = []
        self._noises: dict[str, list[_Noise]] = {}

    def run_float(self, inputs: Mapping[str, Array]) -> None:
        """Run the float model on a piece of the data, that further runs are compared with."""
        self._base = self._staged.run(inputs, quantized=False)
        self._signals.append({name: _power(self._floats(name)) for name in self._outputs})

    def alone(self, layer: str) -> _Noise:
        """Noise of the outputs with one layer quantized."""
        changed = self._staged.changed_outputs(layer, self._base)
        return {name: _difference(self._floats(name), changed[name]) for name in self._outputs}

    def add(self, noises: Mapping[str, _Noise]) -> dict[str, float]:
        """Add what layers change on the last piece, and return their noise on all so far."""
        found = {}
        for layer, noise in noises.items():
            before = self._noises.setdefault(layer, [])
            before.append(noise)
            found[layer] = sum(self._combined(name, before) for name in self._outputs)
        return found

    def _combined(self, output: str, noises: Sequence[_Noise]) -> float:
        signal = math.fsum(piece[output] for piece in self._signals) / len(self._signals)
        return self._combine([noise[output] / signal for noise in noises] if signal > 0.0 else [])

    def _floats(self, name: str) -> Array:
        return self._staged.floats(name, self._base[name])


def _difference(wanted: Array, found: Array) -> float:
    """The squared difference; of integers how many differ."""
    # What has another shape, NaN or infinities is noise as a whole: as loud as the signal.
    if wanted.shape != found.shape:
        return _power(wanted)
    if wanted.dtype.kind != "f":
        return float(np.count_nonzero(wanted != found))
    noise = float(np.sum((wanted.astype(np.float64) - found.astype(np.float64)) ** 2))
    return noise if np.isfinite(noise) else _power(wanted)


def _power(array: Array) -> float:
    return float(array.size) if array.dtype.kind != "f" else float(np.sum(array.astype(np.float64) ** 2))
