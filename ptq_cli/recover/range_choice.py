"""The rung ``ranges``: the method of each tensor is the one that costs its readers least."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from ptq_cli.calibdata.bind import count_samples
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.documents import rounded
from ptq_cli.core.progress import ProgressCallback, RunProgress
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.recipe.sections import AmaxSettings
from ptq_cli.recover.quantized_layer import require_integers
from ptq_cli.recover.range_candidates import (
    PERCENTILES,
    Candidates,
    method_of,
    range_candidates,
    told_bounds,
)
from ptq_cli.recover.range_effects import Costs, range_costs
from ptq_cli.recover.recovery_data import (
    MEASURED_ON,
    MOST_WORK,
    TOGETHER,
    Build,
    RecoveryData,
    few,
    one_sample,
    sample_work,
)
from ptq_cli.recover.rescale_model import LITTLE
from ptq_cli.runtime.machine import Machine

STAGE = "ranges"
MOST_TENSORS = 64
"""Of more, those are measured whose candidates differ most, on as many samples as run together."""
GAIN = 0.9
"""A candidate that costs more than this share of what the recipe's method costs is not worth a change."""
FOR_ALL = ("max", *(f"percentile {share:g}" for share in PERCENTILES))
"""Methods that are also tried for all tensors together."""


@dataclass(frozen=True, kw_only=True)
class RangesByEffect:
    """What the rung did."""

    kept: Annotated[
        bool, "Whether the output was better for it on the samples that judge; otherwise nothing was changed."
    ]
    before: Annotated[float, "SQNR of the outputs on these, without it, in dB."]
    after: Annotated[float, "With it; the same if nothing is better."]
    samples: Annotated[int, "How many samples were measured on."]
    decided_by: Annotated[int, "How many samples judge."]
    tensors: Annotated[int, "How many had a choice."]
    methods: Annotated[
        Mapping[str, str], "What was chosen, by tensor, where it is not the recipe's method."
    ] = field(default_factory=dict)
    within: Annotated[
        Mapping[str, tuple[float, float]],
        "Where ranges end because no reader tells values beyond apart, by tensor; infinite where none ends.",
    ] = field(default_factory=dict)

    @property
    def reached(self) -> float:
        """SQNR of the outputs on the held-out samples with what was kept, in dB."""
        return self.after if self.kept else self.before

    @property
    def changed(self) -> int:
        """How many tensors have another range than the recipe's method gives."""
        return len(self.methods.keys() | self.within.keys())

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model; an SQNR that is not finite is null."""
        sqnr = [rounded(value) for value in (self.before, self.after)]
        return json.dumps(
            {
                "kept": self.kept,
                "sqnr_db": sqnr,
                "samples": self.samples,
                "decided_by": self.decided_by,
                "methods": dict(self.methods),
                "within": {source: list(map(rounded, ends)) for source, ends in self.within.items()},
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
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Placement, RangesByEffect]:
    """Return the placement with the best range of each tensor, and what was done.

    First ranges end where the readers no longer tell values apart, if that helps; then methods are chosen.
    The float model is cut at ``cuts``, whatever is quantized of it. Once ``stop`` says so, what was measured
    until then decides.
    """
    require_integers(placement.plan)
    samples, _, decided_by = data.samples
    floats = float_model.load()
    # One judge of all choices: those held out alone, a third of these, often pointed at the wrong one.
    sqnr = data.judge(float_model, machine.threads)
    made, plan = build(placement)
    before = told = sqnr(serialize(made))
    asked, within = placement, told_bounds(floats, placement, calibration)
    if within:
        bounded = replace(placement, within=within)
        made, of_bounded = build(bounded)
        if (found := sqnr(serialize(made), at_least=told)) > told:
            placement, told, plan = bounded, found, of_bounded
    tried = {source: range_candidates(plan, source, placement, calibration) for source in plan.sources}
    grids = {
        source: [parameters for _, parameters in found.choices]
        for source, found in tried.items()
        if not found.has_few_bits  # With few bits there is no choice by effect.
    }
    measured, most = affordable(grids, sample_work(floats, samples.fit[0], data.inputs))
    measured_on = few(samples.fit, data.inputs, most)
    progress(RunProgress(STAGE, 0, None))
    costs = range_costs(
        floats,
        plan,
        measured,
        [*one_sample(measured_on[0], data.inputs), *measured_on],
        cuts=cuts,
        known=data.known_costs,
        threads=machine.threads,
        stop=stop,
        done=lambda done, total: progress(RunProgress(STAGE, done, total, number=done, runs=total)),
    )

    changed, methods, after = _best(
        placement,
        _assignments(tried, costs, FOR_ALL if measured else FOR_ALL[:1]),
        lambda made, least: sqnr(serialize(build(made)[0]), at_least=least),
        told,
    )
    kept = after - before >= LITTLE  # Less is chance.
    result = RangesByEffect(
        kept=kept,
        before=before,
        after=after,
        samples=sum(count_samples(piece, data.inputs) for piece in measured_on),
        decided_by=decided_by,
        # Not those of ``costs``: one method for all also changes tensors that were too many to measure.
        tensors=sum(len(found.choices) > 1 or source in within for source, found in tried.items()),
        methods={source: method_of(item) for source, item in methods.items()},
        within=placement.within,
    )
    return (changed if kept else asked), result


def _best(
    placement: Placement,
    assignments: Iterator[dict[str, AmaxSettings]],
    sqnr: Callable[[Placement, float], float],
    told: float,
) -> tuple[Placement, dict[str, AmaxSettings], float]:
    """Return the placement with the methods whose model is nearest, these methods, and its SQNR in dB.

    The placement as it is has ``told``; ``sqnr`` is asked of the others whether they have more than the best.
    """
    best: tuple[Placement, dict[str, AmaxSettings], float] = (placement, {}, told)
    for methods in assignments:
        settings = replace(placement.settings, activations={**placement.settings.activations, **methods})
        changed = replace(placement, settings=settings)
        found = sqnr(changed, best[2])
        if found > best[2]:
            best = changed, methods, found
    return best


def most_unlike(
    grids: Mapping[str, Sequence[QuantParameters]], most: int
) -> dict[str, Sequence[QuantParameters]]:
    """Return the tensors with a choice, at most so many: those whose candidates have the most unlike scales.

    Example:
        >>> from ptq_cli.core.formats import BY_NAME
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

    ``work`` is in multiply-accumulates of the model for one sample; half of them run again for each
    candidate.

    Example:
        >>> from ptq_cli.core.formats import BY_NAME
        >>> both = [QuantParameters(scale, 0, BY_NAME["uint8"]) for scale in (1.0, 2.0)]
        >>> grids = dict.fromkeys(map(str, range(40)), both)
        >>> chosen = [affordable(grids, work) for work in (1e8, 1e10, 1e11)]
        >>> [(len(found), samples) for found, samples in chosen]
        [(40, 16), (40, 4), (0, 1)]
    """
    choices = sum(len(found) > 1 for found in grids.values())
    measured = most_unlike(grids, MOST_TENSORS)
    candidates = sum(map(len, measured.values()))
    for samples in (MEASURED_ON if choices <= MOST_TENSORS else TOGETHER, TOGETHER, 1):
        if candidates * samples * work / 2 <= MOST_WORK:
            return measured, samples
    return {}, 1


def _assignments(
    tried: Mapping[str, Candidates], costs: Mapping[str, Costs], for_all: Sequence[str]
) -> Iterator[dict[str, AmaxSettings]]:
    """Yield which tensors could have another method: the best of each, and one method for all; each once.

    With few bits that is ``mse``. The effect on the outputs of the float model chose worse: behind ``round``,
    which makes up for what clipping does to the means, three models had 0.1 to 1.6 dB less.
    """
    of_few = {source: len(found.choices) - 1 for source, found in tried.items() if found.has_few_bits}
    by_effect = {
        source: best for source, cost in costs.items() if cost[best := int(cost.argmin())] < GAIN * cost[0]
    }
    of_all = (
        {source: index for source, found in tried.items() if (index := found.chosen_by.get(method))}
        for method in for_all
    )
    seen: list[dict[str, int]] = [{}]
    for wanted in (by_effect, *of_all):
        changed = {source: index for source, index in (of_few | wanted).items() if index}
        if changed not in seen:
            seen.append(changed)
            yield {source: tried[source].choices[index][0] for source, index in changed.items()}
