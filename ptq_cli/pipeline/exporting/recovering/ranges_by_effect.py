"""The rung ``ranges``: the method of each tensor is the one that costs its readers least."""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.core.numbers.arithmetic import QuantParameters
from ptq_cli.core.tensors import Array
from ptq_cli.core.work.progress import ProgressCallback, RunProgress
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.pipeline.exporting.placing.placement import Placement
from ptq_cli.pipeline.exporting.recovering.range_candidates import (
    PERCENTILES,
    Candidate,
    range_candidates,
)
from ptq_cli.pipeline.exporting.recovering.recovery_data import RecoveryData, recovery_samples
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recipe.sections.calibration_sections import AmaxSettings
from ptq_cli.recovery.range_effects import Costs, model_sqnr, range_costs
from ptq_cli.runtime.machine import Machine

STAGE = "ranges"
MEASURED_ON, TOGETHER = 16, 4
"""Samples that the candidates are measured on that seem best, and how many run together."""
MOST_TENSORS = 64
"""Of more, those are measured whose candidates differ most, on as many samples as run together."""
MOST_WORK = 2e12
"""Multiply-accumulates that candidates may take; a larger model has fewer samples, and then fewer tensors."""
GAIN = 0.9
"""A candidate that costs more than this share of what the recipe's method costs is not worth a change."""
FOR_ALL = (
    AmaxSettings(method="max"),
    *(AmaxSettings(method="percentile", percentile=share) for share in PERCENTILES),
)
"""Methods that are also tried for all tensors together."""

Build = Callable[[Placement], tuple[ir.Model, Plan]]
"""Makes the quantized graph of a placement, and its plan."""


@dataclass(frozen=True, kw_only=True)
class RangesByEffect:
    """What the rung did.

    Attributes:
        kept: whether the output was better for it on the samples set aside; otherwise nothing was changed.
        before, after: SQNR of the outputs on these, in dB.
        samples, decided_by: how many samples were measured on, and set aside.
        tensors: how many had a choice.
        methods: what was chosen, by tensor, where it is not the recipe's method.
    """

    kept: bool
    before: float
    after: float
    samples: int
    decided_by: int
    tensors: int
    methods: Mapping[str, str] = field(default_factory=dict)

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model; an SQNR that is not finite is null."""
        sqnr = [round(value, 3) if math.isfinite(value) else None for value in (self.before, self.after)]
        return json.dumps(
            {
                "kept": self.kept,
                "sqnr_db": sqnr,
                "samples": self.samples,
                "decided_by": self.decided_by,
                "methods": dict(self.methods),
            }
        )


def choose_ranges(
    build: Build,
    float_model: StoredModel,
    placement: Placement,
    calibration: Calibration,
    data: RecoveryData,
    cuts: Collection[str],
    machine: Machine,
    progress: ProgressCallback,
) -> tuple[Placement, RangesByEffect]:
    """Return the placement with the best method of each tensor, and what was done.

    Args:
        build: makes the quantized graph of a placement.
        float_model: that it is made from.
        placement: with the methods of the recipe.
        calibration: has the statistics that each method decides from.
        data: the calibration data.
        cuts: tensors at which the float model is cut, whatever is quantized of it.
        machine: what of it may be used.
        progress: is called after each run.

    Raises:
        RecoveryError: there are too few samples.
        RuntimeFailedError: ONNX Runtime failed.
        PtqError: the data cannot be read.
    """
    samples, _, decided_by = recovery_samples(data)
    model, plan = build(placement)
    twins = TwinGraphs(float_model.load(), model)
    tried = {source: range_candidates(plan, source, placement, calibration) for source in plan.sources}
    grids = {source: [parameters for _, parameters in found] for source, found in tried.items()}
    measured, most = affordable(grids, _sample_work(twins.float_model, samples.fit[0]))
    measured_on = few(samples.fit, most)
    progress(RunProgress(STAGE, 0, None))
    costs = range_costs(
        twins,
        plan,
        measured,
        measured_on,
        cuts=cuts,
        known=data.known_costs,
        threads=machine.threads,
        done=lambda done, total: progress(RunProgress(STAGE, done, total)),
    )

    def sqnr(quantized: ir.Model) -> float:
        return model_sqnr(float_model, serialize(quantized), samples.decide, threads=machine.threads)

    before = sqnr(model)
    changed, methods, after = _best(placement, _assignments(tried, costs), lambda made: sqnr(build(made)[0]))
    kept = after > before
    result = RangesByEffect(
        kept=kept,
        before=before,
        after=after if methods else before,
        samples=sum(_size(piece) for piece in measured_on),
        decided_by=decided_by,
        tensors=len(costs),
        methods={source: written_method(item) for source, item in methods.items()},
    )
    return (changed if kept else placement), result


def _best(
    placement: Placement,
    assignments: Iterator[dict[str, AmaxSettings]],
    sqnr: Callable[[Placement], float],
) -> tuple[Placement, dict[str, AmaxSettings], float]:
    """Return the placement with the methods whose model is nearest, these methods, and its SQNR in dB."""
    best: tuple[Placement, dict[str, AmaxSettings], float] = (placement, {}, -math.inf)
    for methods in assignments:
        changed = _with_methods(placement, methods)
        found = sqnr(changed)
        if found > best[2]:
            best = changed, methods, found
    return best


def most_unlike(
    grids: Mapping[str, Sequence[QuantParameters]], most: int
) -> dict[str, Sequence[QuantParameters]]:
    """Return the tensors with a choice, at most so many: those whose candidates have the most unlike scales.

    Example:
        >>> from ptq_cli.core.numbers.formats import BY_NAME
        >>> grid = lambda scale: QuantParameters(scale, 0, BY_NAME["uint8"])
        >>> found = {"a": [grid(1.0)], "b": [grid(1.0), grid(2.0)], "c": [grid(1.0), grid(9.0)]}
        >>> list(most_unlike(found, 5)), list(most_unlike(found, 1))
        (['b', 'c'], ['c'])
    """
    ratios = {
        source: max(scales) / min(scales)
        for source, found in grids.items()
        if len(scales := [float(grid.scale) for grid in found]) > 1
    }
    chosen = set(sorted(ratios, key=lambda source: (-ratios[source], source))[:most])
    return {source: found for source, found in grids.items() if source in chosen}


def affordable(
    grids: Mapping[str, Sequence[QuantParameters]], work: float
) -> tuple[dict[str, Sequence[QuantParameters]], int]:
    """Return the tensors that are measured, and on how many samples.

    Args:
        grids: candidates of each tensor.
        work: multiply-accumulates of the model for one sample; half of them run again for each candidate.

    Example:
        >>> from ptq_cli.core.numbers.formats import BY_NAME
        >>> both = [QuantParameters(scale, 0, BY_NAME["uint8"]) for scale in (1.0, 2.0)]
        >>> grids = dict.fromkeys(map(str, range(40)), both)
        >>> chosen = [affordable(grids, work) for work in (1e8, 1e10, 1e11)]
        >>> [(len(found), samples) for found, samples in chosen]
        [(40, 16), (40, 4), (20, 1)]
    """
    choices = sum(len(found) > 1 for found in grids.values())
    measured = most_unlike(grids, MOST_TENSORS)
    candidates = sum(map(len, measured.values()))
    for samples in (MEASURED_ON if choices <= MOST_TENSORS else TOGETHER, TOGETHER, 1):
        if candidates * samples * work / 2 <= MOST_WORK:
            return measured, samples
    share = MOST_WORK / (candidates * work / 2)
    return most_unlike(grids, int(share * len(measured))), 1


def _sample_work(model: ir.Model, piece: Mapping[str, Array]) -> float:
    """Return the multiply-accumulates of a model for one of a piece's samples, as far as they are known."""
    found = multiply_accumulates(model, {name: array.shape for name, array in piece.items()})
    return found.total / _size(piece)


def few(pieces: Sequence[Mapping[str, Array]], most: int = MEASURED_ON) -> list[dict[str, Array]]:
    """Return the first samples, in pieces of which all tensors between layers fit into memory.

    Args:
        pieces: the samples.
        most: how many to return, about.

    Edge case:
        A piece that cannot be divided is taken as it is.

    Example:
        >>> import numpy as np
        >>> [len(piece["x"]) for piece in few([{"x": np.zeros((28, 3))}])]
        [4, 4, 4, 4]
        >>> [len(piece["x"]) for piece in few([{"x": np.zeros((28, 3))}], 1)]
        [1]
    """
    found: list[dict[str, Array]] = []
    for piece in pieces:
        size = _size(piece)
        together = min(TOGETHER, most)
        divides = size > together and all(array.ndim and len(array) == size for array in piece.values())
        for start in range(0, size, together) if divides else (0,):
            part = slice(start, start + together)
            found.append({name: array[part] if divides else array for name, array in piece.items()})
            if sum(map(_size, found)) >= most:
                return found
    return found


def _assignments(
    tried: Mapping[str, Sequence[Candidate]], costs: Mapping[str, Costs]
) -> Iterator[dict[str, AmaxSettings]]:
    """Yield which tensors could have another method: the best of each, and one method for all."""
    by_effect = {
        source: tried[source][best][0]
        for source, cost in costs.items()
        if (best := int(cost.argmin())) and cost[best] < GAIN * cost[0]
    }
    if by_effect:
        yield by_effect
    for wanted in FOR_ALL:
        found = {
            source: item
            for source, candidates in tried.items()
            for index, (item, _) in enumerate(candidates)
            if index and (item.method, item.percentile) == (wanted.method, wanted.percentile)
        }
        if found:
            yield found


def written_method(settings: AmaxSettings) -> str:
    """Return a method in a word or two.

    Example:
        >>> written_method(AmaxSettings(method="percentile", percentile=99.9)), written_method(
        ...     AmaxSettings(method="max")
        ... )
        ('percentile 99.9', 'max')
    """
    return f"percentile {settings.percentile:g}" if settings.method == "percentile" else settings.method


def _with_methods(placement: Placement, chosen: Mapping[str, AmaxSettings]) -> Placement:
    settings = placement.settings
    return replace(placement, settings=replace(settings, activations={**settings.activations, **chosen}))


def _size(piece: Mapping[str, Array]) -> int:
    return max((len(array) for array in piece.values() if array.ndim), default=1)
