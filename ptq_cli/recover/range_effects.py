"""What each range of a tensor costs the outputs of a model, measured on samples."""

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.progress import pooled_results
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.models.files.storing import constant_bytes
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import StagedModel, TensorGrid, Tensors, cut_stages, on_grid
from ptq_cli.recover.output_noise import Noise, PieceInputs, lowest_of, noise_of
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap

Name = TypeVar("Name", bound=Any)
Costs = npt.NDArray[np.float64]
_QUIET = 2.0**-7  # share of the noise of the first candidates for which no other one is measured: 0.03 dB
# By which share of what the best of its tensor has cost a candidate may cost more, and is measured further:
# after the first piece, and after the second; after the third half of that, then a third.
FAR = (3.0, 1.0)
JOINED_BYTES = 1 << 28  # constants of a model of which stages run in rows, whose sessions hold them again

# What runs have shown, by what was run. Which layers a candidate of a tuning leaves in float changes none of
# them: all but one tensor is in float anyway.
KnownCosts = dict[Hashable, float]
Running = dict[str, list[int]]  # which candidates of each source are measured


@dataclass(frozen=True, kw_only=True)
class Trials:
    """How the float model is run with tensors on grids.

    Attributes:
        threads: each runs a candidate; the result does not depend on them.
        stop: once it says so, the pieces until then decide.
        done: is told after each run how many are done, of at most how many.
        cuts: tensors at which the model is cut, beside those of the plan. With the same cuts, runs for
            another plan show the same to the last bit.
        known: what runs of this model have shown before; is added to.
        pieces: how the pieces were chosen: with the same words they are the same.
    """

    threads: int = 1
    stop: Callable[[], bool] = lambda: False
    done: Callable[[int, int], None] = lambda _done, _total: None
    cuts: Collection[str] = ()
    known: KnownCosts = field(default_factory=dict)
    pieces: str = ""


def range_costs(
    float_model: ir.Model,
    plan: Plan,
    candidates: Mapping[str, Sequence[QuantParameters]],
    pieces: Sequence[PieceInputs],
    trials: Trials,
) -> dict[str, Costs]:
    """Return the noise share of the model's outputs for each candidate range, by tensor.

    The float model runs with one tensor on the grid of one candidate, all else in float; tensors that share
    parameters are on it together. Only what comes behind them is run again. On the first piece, which only
    tells what to measure on the others, the first candidate of each tensor is measured, and then the others
    of the tensors that make all but ``_QUIET`` of the noise. On each further piece those are measured that
    cost not much more than the best of their tensor.

    Args:
        float_model: that is quantized.
        plan: for it.
        candidates: parameters by source, the tensor whose statistics decide; of one nothing is measured.
        pieces: the model's inputs, of few samples each; the first may be part of the second.
        trials: how they are run.

    Units:
        noise over signal, added up over outputs and pieces; infinite for candidates that were left out.

    Edge case:
        What the error at a tensor's readers alone would choose is worse: it clips outliers that the output
        depends on.
    """
    grids = {source: found for source, found in candidates.items() if len(found) > 1}
    tensors = _tensors_of(float_model, plan, grids)
    with _on_grids(float_model, {*plan.activations}, tensors, grids, trials) as model:
        grids = {source: grids[source] for source in model.tensors}
        costs = {source: np.zeros(len(found)) for source, found in grids.items()}
        each = sum(map(len, grids.values()))
        running: Running = {source: [0] for source in grids}
        told = _Told(trials.done)
        for number, piece in enumerate(pieces):
            if number and trials.stop():
                break
            asked, left = _undecided(running) if number else running, len(pieces) - number - 1
            now = _size(asked)
            later = left * now if number else (left + 1) * each - now
            model.measure(number, piece, asked, costs, told.of(now, later))
            # After the first piece most tensors prove to be quiet, and cost no further runs.
            if number == 0:
                loud = loudest({source: costs[source][0] for source in running}, len(running), _QUIET)
                others: Running = {source: list(range(1, len(grids[source]))) for source in loud}
                now = _size(others)
                model.measure(0, piece, others, costs, told.of(now, left * (now + len(loud))))
                running |= {source: [0, *indices] for source, indices in others.items()}
            # Candidates that are far behind are dropped; how far shrinks as more samples have been seen.
            running = _close(running, costs, 1.0 + (FAR[1] / number if number else FAR[0]))
            # What one sample has shown counts no further: it may be very unlike the others.
            if number == 0 and pieces[1:]:
                for source in _undecided(running):
                    costs[source][:] = 0.0
    for source, indices in running.items():
        costs[source][[index for index in range(len(costs[source])) if index not in indices]] = np.inf
    told.of(0, 0)(0)
    return costs


def _tensors_of(float_model: ir.Model, plan: Plan, sources: Collection[str]) -> dict[str, list[str]]:
    """Return the tensors of the main graph that are on the grid of each source."""
    own = {value.name for value in float_model.graph.inputs}
    own |= {value.name for node in float_model.graph for value in node.outputs}
    tensors: dict[str, list[str]] = {}
    for tensor, site in plan.activations.items():
        if tensor in own and site.source in sources:
            tensors.setdefault(site.source, []).append(tensor)
    return tensors


@contextmanager
def _on_grids(
    float_model: ir.Model,
    cuts: Collection[str],
    tensors: Mapping[str, Sequence[str]],
    grids: Mapping[str, Sequence[TensorGrid]],
    trials: Trials,
) -> Iterator["_ModelOnGrids"]:
    """Give a float model whose tensors can be on grids, and threads for it."""
    with ThreadPoolExecutor(trials.threads, "ranges") as pool:
        yield _ModelOnGrids(float_model, cuts, tensors, grids, trials, pool)


def _size(running: Running) -> int:
    return sum(map(len, running.values()))


class _Told:
    """Counter of finished runs, and of how many there are at most: each piece may lower that."""

    def __init__(self, done: Callable[[int, int], None]) -> None:
        self._done, self._finished = done, 0

    def of(self, now: int, later: int) -> Callable[[int], None]:
        """Return a callback for how many of the next runs, ``now``, are done; at most ``later`` follow."""
        before = self._finished

        def tell(count: int) -> None:
            self._finished = before + count
            self._done(self._finished, before + now + later)

        return tell


def tensor_noise(
    float_model: ir.Model,
    plan: Plan,
    grids: Mapping[str, QuantParameters],
    pieces: Sequence[PieceInputs],
    trials: Trials,
) -> dict[str, float]:
    """Return the noise share of the model's outputs with only one tensor on its grid, by source.

    Args: as of ``range_costs``, with the one grid of each source that is measured.
    """
    tensors = _tensors_of(float_model, plan, grids)
    return _noise_of_each(float_model, {*plan.activations}, tensors, grids, pieces, trials)


def noise_at_each_run(
    float_model: ir.Model,
    grids: Mapping[str, Callable[[Array], Array]],
    pieces: Sequence[PieceInputs],
    trials: Trials,
) -> dict[str, float]:
    """Return the noise share of the model's outputs with only one tensor on a grid found at each run.

    Args: as of ``tensor_noise``; ``grids`` round the values of a tensor, by its name.
    """
    return _noise_of_each(float_model, grids, {name: [name] for name in grids}, grids, pieces, trials)


class FloatOnGrids:
    """The float model with tensors on grids found at each run: the noise of its outputs on some pieces."""

    def __init__(
        self, float_model: ir.Model, tensors: Collection[str], pieces: Sequence[PieceInputs]
    ) -> None:
        self._staged, self._outputs = _staged(float_model, tensors)
        self._bases = [self._staged.run(piece, quantized=False) for piece in pieces]

    def sqnr_db(self, grids: Mapping[str, TensorGrid]) -> float:
        """SQNR of the worst output with these tensors on their grids."""
        return lowest_of([self._noise(base, grids) for base in self._bases])

    def _noise(self, base: Tensors, grids: Mapping[str, TensorGrid]) -> Noise:
        found = self._staged.on_grids(grids, base)
        wanted = [self._staged.floats(name, base[name]) for name in self._outputs]
        return noise_of(wanted, [found[name] for name in self._outputs])


def _staged(model: ir.Model, cuts: Collection[str]) -> tuple[StagedModel, list[str]]:
    """Return a float model that is cut at some tensors, and its outputs."""
    outputs = [value.name or "" for value in model.graph.outputs if value.const_value is None]
    staged = StagedModel(cut_stages(TwinGraphs(model, model), (), cuts), {}, outputs[0], outputs)
    if constant_bytes(model) <= JOINED_BYTES:
        staged.join(model)
    return staged, outputs


def _noise_of_each(
    float_model: ir.Model,
    cuts: Collection[str],
    tensors: Mapping[str, Sequence[str]],
    grids: Mapping[str, TensorGrid],
    pieces: Sequence[PieceInputs],
    trials: Trials,
) -> dict[str, float]:
    each = {source: [grid] for source, grid in grids.items()}
    with _on_grids(float_model, cuts, tensors, each, trials) as model:
        running: Running = {source: [0] for source in model.tensors}
        costs, count = {source: np.zeros(1) for source in running}, len(running)
        for number, piece in enumerate(pieces):
            if number and trials.stop():
                break

            def tell(done: int, passed: int = number * count) -> None:
                trials.done(passed + done, count * len(pieces))

            model.measure(number, piece, running, costs, tell)
    return {source: float(cost[0]) for source, cost in costs.items()}


def row_noise(
    float_model: ir.Model, plan: Plan, grids: Mapping[str, QuantParameters], piece: PieceInputs
) -> dict[str, float]:
    """Return of each source how much of a row is noise on its grid, on average over the rows of one piece.

    Shares are of each row by itself: of the whole tensor, one huge row would hide that all others are lost.
    """
    sources = {name: site.source for name, site in plan.activations.items() if site.source in grids}
    found: dict[str, float] = {}
    each = noise_of_grids(float_model, {name: grids[source] for name, source in sources.items()}, piece)
    for tensor, share in each.items():
        found[sources[tensor]] = max(found.get(sources[tensor], 0.0), share)
    return found


def noise_of_grids(
    float_model: ir.Model, grids: Mapping[str, TensorGrid], piece: PieceInputs
) -> dict[str, float]:
    """Return of each tensor how much of a row is noise on its grid; otherwise as ``row_noise``."""
    own = {value.name for node in float_model.graph for value in node.outputs}
    taps = [name for name in grids if name in own]
    made = dict(zip(taps, Session(tap(float_model, taps), threads=1).run(piece), strict=True))
    found = {}
    for tensor, grid in grids.items():
        array = made.get(tensor, piece.get(tensor))
        if array is not None and array.ndim and array.size:
            rows = array.reshape(-1, array.shape[-1]).astype(np.float64)
            missed = on_grid(array, grid).astype(np.float64).reshape(rows.shape) - rows
            signal, noise = np.sum(rows**2, axis=1), np.sum(missed**2, axis=1)
            share = np.minimum(noise[signal > 0.0] / signal[signal > 0.0], 1.0)
            found[tensor] = float(share.mean()) if share.size else 0.0
    return found


def loudest(shares: Mapping[Name, float], most: int, quiet: float) -> list[Name]:
    """Return the names with all but the share ``quiet`` of the noise, at most so many, in the order given.

    Edge case:
        Noise that is not finite is loud.
    """
    sizes = {name: share if math.isfinite(share) else math.inf for name, share in shares.items()}
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    total = sum(share for share in sizes.values() if math.isfinite(share))
    kept, left = set(), total
    for name in order[:most]:
        if math.isfinite(sizes[name]) and left <= quiet * total:
            break
        kept.add(name)
        left -= sizes[name] if math.isfinite(sizes[name]) else 0.0
    return [name for name in shares if name in kept]


def _undecided(running: Running) -> Running:
    return {source: indices for source, indices in running.items() if len(indices) > 1}


def _close(running: Running, costs: Mapping[str, Costs], far: float) -> Running:
    """Return the candidates that have not cost so many times what the best of their tensor has."""
    found = {}
    for source, indices in running.items():
        # A range that makes the outputs NaN is the worst of all, and would otherwise compare as nothing.
        cost = np.nan_to_num(costs[source], nan=np.inf)
        best = min(cost[indices])
        found[source] = [index for index in indices if cost[index] <= far * best]
    return found


class _ModelOnGrids:
    """A float model of which some tensors are on grids; what was run once is remembered."""

    def __init__(
        self,
        float_model: ir.Model,
        cuts: Collection[str],
        tensors: Mapping[str, Sequence[str]],
        grids: Mapping[str, Sequence[TensorGrid]],
        trials: Trials,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._model, self._cuts = float_model, frozenset({*trials.cuts, *cuts})
        self.tensors, self._grids = tensors, grids
        self._known, self._chosen, self._pool = trials.known, trials.pieces, pool
        self._staged: tuple[StagedModel, list[str]] | None = None

    def measure(
        self,
        number: int,
        piece: PieceInputs,
        running: Running,
        costs: Mapping[str, Costs],
        tell: Callable[[int], None],
    ) -> None:
        """Add what candidates cost on a piece of the data to their costs."""
        keys = {
            (source, index): self._key(number, source, index)
            for source, indices in running.items()
            for index in indices
        }
        # Two exports of one tuning often ask for the same grids, and a run of the model is what costs.
        unknown = [task for task, key in keys.items() if key not in self._known]
        for task, noise in zip(unknown, self._runs(piece, unknown, tell), strict=True):
            self._known[keys[task]] = noise
        for (source, index), key in keys.items():
            costs[source][index] += self._known[key]

    def _key(self, number: int, source: str, index: int) -> Hashable:
        grid = self._grids[source][index]
        tensors = tuple(self.tensors[source])
        if not isinstance(grid, QuantParameters):
            return self._chosen, self._cuts, number, tensors, grid
        return self._chosen, self._cuts, number, tensors, float(grid.scale), int(grid.zero_point), grid.format

    def _runs(
        self, piece: PieceInputs, tasks: Sequence[tuple[str, int]], tell: Callable[[int], None]
    ) -> list[float]:
        if not tasks:
            return []
        if self._staged is None:
            self._staged = _staged(self._model, self._cuts)
        staged, outputs = self._staged
        base = staged.run(piece, quantized=False)
        wanted = {name: staged.floats(name, base[name]) for name in outputs}

        def noise(task: tuple[str, int]) -> float:
            source, index = task
            found = staged.on_grids(dict.fromkeys(self.tensors[source], self._grids[source][index]), base)
            return sum(_noise(wanted[name], found[name]) for name in outputs)

        return pooled_results(self._pool, noise, tasks, tell)


def _noise(wanted: Array, found: Array) -> float:
    """Return the share of an output that is noise; of integers how many differ.

    Edge case:
        What has another shape, NaN or infinities is noise as a whole.
    """
    if not is_array(wanted) or not wanted.size:
        return 0.0
    # Shapes may depend on values, as behind a NonZero: then nothing can be compared element by element.
    if wanted.shape != found.shape:
        return 1.0
    if wanted.dtype.kind != "f":
        return float(np.count_nonzero(wanted != found)) / wanted.size
    values = wanted.astype(np.float64)
    signal = float(np.sum(values * values))
    noise = float(np.sum((values - found.astype(np.float64)) ** 2))
    # An output of zeros alone has no scale to compare noise with.
    if not signal > 0.0:
        return 0.0
    return noise / signal if np.isfinite(noise) else 1.0
