"""What a tuning has measured so far, so that it continues where it was interrupted."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.documents import decode, encode, strict_json
from ptq_cli.core.errors import ReportError
from ptq_cli.core.files import write_text
from ptq_cli.core.progress import ProgressCallback, RunProgress, pooled_results
from ptq_cli.core.read_files import read_file
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.pipeline.evaluation.analysis_subject import pieces_of
from ptq_cli.pipeline.setup.resumable import Tell, read_checkpoint
from ptq_cli.pipeline.tuning.candidate import Seen
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.worth import float_costs
from ptq_cli.qdq.cut_stages import cut_stages
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import StagedModel
from ptq_cli.recipe.sections import SIZE
from ptq_cli.recovery.range_effects import loudest

# The noise that each layer adds on its own, in as few runs as tell the loud ones from the others.


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
        """Begin to measure layers on a piece of the data."""
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

    ``left`` layers were measured on the last samples, ``begun`` on the first ones; all are on ``first``
    samples.

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

    Each thread runs a model of its own; the result does not depend on them.

    Units:
        shares of what an output varies by, the sum over all outputs.
    """
    outputs = [value.name or "" for value in twins.float_model.graph.outputs if value.const_value is None]
    stages = cut_stages(twins, {layer.name for layer in plan.layers if layer.quantized})
    staged = StagedModel(stages, twins.pairs, outputs[0], outputs)
    follows = {name for name, rule in target.op.items() if rule.kind in ("same", "clamp")}
    follow = {layer.name for layer in plan.layers if layer.op in follows}
    names = [name for name in staged.layers if name not in follow]
    many = len(names) > MOST_ALONE
    first = 1 if many else FIRST
    # Of a model with very many layers groups come first: a run for each layer would take hours.
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
            # Quiet layers are not measured on further samples: only the order of the loud ones matters.
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


# Which layers to leave in float, the cheapest first: by the noise that each adds on its own.


LEAST_SHARE = 1e-4
"""Of the whole cost: what a layer costs that saves time in float."""


LOUDEST = 1e30
"""What noise that is not finite counts as."""


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
        """Return which layers to change, more and more; see ``layers_by_level``."""
        noise = {name: value for name, value in self.noise.items() if among is None or name in among}
        most = len(noise) - (among is None)  # Of layers in float some are left.
        return layers_by_level(noise, self.cost, levels, most=most)


def layer_costs(model: ir.Model, plan: Plan, names: Collection[str], prefer: str) -> dict[str, float]:
    """Return what each layer costs if it stays in float.

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
    least = LEAST_SHARE * sum(max(cost, 0.0) for cost in found.values()) or 1.0
    return {name: max(cost, least) for name, cost in found.items()}


def layers_by_level(
    noise: Mapping[str, float], cost: Mapping[str, float], levels: Collection[int], *, most: int
) -> tuple[tuple[str, ...], ...]:
    """Return which layers to leave in float so that a half, a quarter, an eighth … of the noise is left.

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


@dataclass(kw_only=True)
class _Content:
    identity: dict[str, str]
    compared: dict[str, Seen] = field(default_factory=dict)
    proven: dict[str, Seen] = field(default_factory=dict)
    rankings: dict[str, LayerRanking] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class TuneCheckpoint(_Content):
    """Measurements by candidate, written to a file after each.

    Attributes:
        rankings: of the layers, by the key of the candidate that they were ranked for.
        written: SHA-256 of the candidates that were the best so far and were written.
        stored: whether it is written at all; several processes of torchrun store nothing.
    """

    path: Path
    stored: bool = True

    def save(self) -> None:
        """Write all of it, if it is stored."""
        if self.stored:
            content = _Content(**{item.name: getattr(self, item.name) for item in fields(_Content)})
            write_text(self.path, json.dumps(encode(content), allow_nan=False))


def continued_tuning(path: Path, identity: Mapping[str, str], tell: Tell) -> TuneCheckpoint:
    """Return what an earlier tuning measured, if it is of the same; otherwise nothing, and say why."""

    def refusal(found: _Content) -> str:
        other = [name for name, value in identity.items() if found.identity.get(name) != value]
        return f"{other[0]} has changed" if other else ""

    content = read_checkpoint(path, "tuning", _read, refusal, tell)
    if content is None:
        return TuneCheckpoint(path=path, identity=dict(identity))
    tell(
        f"continuing an earlier tuning after {len(content.compared)} candidates; "
        "--set run.restart=true starts again"
    )
    return TuneCheckpoint(path=path, **vars(content))


def _read(path: Path) -> _Content:
    try:
        content: _Content = decode(_Content, strict_json(read_file(path, "checkpoint of a tuning")), "")
    except (ValueError, RecursionError) as error:
        raise ReportError("it is damaged", hint="start again with --restart") from error
    return content
