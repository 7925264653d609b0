"""The rung ``ranges``: the method of each tensor is the one that costs its readers least."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ptq_cli.amax.decide import decide, resolve_method
from ptq_cli.calibdata.bind import count_samples
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import PtqError
from ptq_cli.core.formats import BYTE
from ptq_cli.core.progress import RunProgress
from ptq_cli.models.files.stored import serialize
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.placement.ranges import ReaderBounds, decide_activations, reader_bounds, statistics_of
from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.quantizer_families import ScaledActivations
from ptq_cli.recipe.sections import AmaxSettings
from ptq_cli.recover.quantized_layer import require_integers
from ptq_cli.recover.range_effects import Costs, range_costs
from ptq_cli.recover.recovery_context import (
    MEASURED_ON,
    MOST_WORK,
    TOGETHER,
    Build,
    RecoveryContext,
    few,
    one_sample,
    sample_work,
)
from ptq_cli.recover.recovery_effects import LITTLE, RangesByEffect

_STAGE = "ranges"
_PERCENTILES = (99.999, 99.99, 99.9)
ALIKE = 0.03  # scales that differ by less are one candidate
# Of more, those are measured whose candidates differ most, on as many samples as run together.
_MOST_TENSORS = 64
_GAIN = 0.9  # a candidate that costs more than this share of the recipe's method is not worth a change
FOR_ALL = ("max", *(f"percentile {share:g}" for share in _PERCENTILES))  # also tried for all tensors together
_Candidate = tuple[AmaxSettings, QuantParameters]


@dataclass(frozen=True)
class _Candidates:
    """What is tried for a tensor.

    Attributes:
        choices: methods with what they choose, each choice once; the recipe's own comes first.
        chosen_by: which of them each method came to, by ``method_of``.
    """

    choices: list[_Candidate] = field(default_factory=list)
    chosen_by: dict[str, int] = field(default_factory=dict)

    @property
    def has_few_bits(self) -> bool:
        """Whether the tensor has fewer than 8 bits."""
        return any(parameters.format.bits < BYTE for _, parameters in self.choices)


def choose_ranges(
    context: RecoveryContext, build: Build, placement: Placement, stop: Callable[[], bool]
) -> tuple[Placement, RangesByEffect]:
    """Return the placement with the best range of each tensor, and what was done.

    First ranges end where the readers no longer tell values apart, if that helps; then methods are chosen.
    Once ``stop`` says so, what was measured until then decides.
    """
    require_integers(placement.plan)
    data, calibration, floats = context.data, context.calibration, context.float_model.load()
    samples, _, decided_by = data.samples
    # One judge of all choices: those held out alone, a third of these, often pointed at the wrong one.
    sqnr = context.judge()
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
    pieces = few(samples.fit, data.inputs, most)
    context.progress(RunProgress(_STAGE, 0, None))
    # The float model is cut at the same tensors, whatever is quantized of it.
    trials = replace(
        context.trials(_STAGE, stop), cuts=placement.target_plan.activations, known=data.known_costs
    )
    costs = range_costs(floats, plan, measured, [*one_sample(pieces[0], data.inputs), *pieces], trials)
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
        samples=sum(count_samples(piece, data.inputs) for piece in pieces),
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
    candidate, and all may take ``MOST_WORK``.

    Example:
        >>> from ptq_cli.core.formats import BY_NAME
        >>> both = [QuantParameters(scale, 0, BY_NAME["uint8"]) for scale in (1.0, 2.0)]
        >>> grids = dict.fromkeys(map(str, range(40)), both)
        >>> chosen = [affordable(grids, work) for work in (1e8, 1e10, 1e11)]
        >>> [(len(found), samples) for found, samples in chosen]
        [(40, 16), (40, 4), (0, 1)]
    """
    choices = sum(len(found) > 1 for found in grids.values())
    measured = most_unlike(grids, _MOST_TENSORS)
    candidates = sum(map(len, measured.values()))
    for samples in (MEASURED_ON if choices <= _MOST_TENSORS else TOGETHER, TOGETHER, 1):
        if candidates * samples * work / 2 <= MOST_WORK:
            return measured, samples
    return {}, 1


def _assignments(
    tried: Mapping[str, _Candidates], costs: Mapping[str, Costs], for_all: Sequence[str]
) -> Iterator[dict[str, AmaxSettings]]:
    """Yield which tensors could have another method: the best of each, and one method for all; each once."""
    # With few bits that is ``mse``. The effect on the outputs of the float model chose worse: behind
    # ``round``, which makes up for what clipping does to the means, three models had 0.1 to 1.6 dB less.
    of_few = {source: len(found.choices) - 1 for source, found in tried.items() if found.has_few_bits}
    by_effect = {
        source: best for source, cost in costs.items() if cost[best := int(cost.argmin())] < _GAIN * cost[0]
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


def method_of(settings: AmaxSettings) -> str:
    """Return a method in a word or two.

    Example:
        >>> [method_of(AmaxSettings(method=name, percentile=99.9)) for name in ("max", "percentile")]
        ['max', 'percentile 99.9']
    """
    return f"percentile {settings.percentile:g}" if settings.method == "percentile" else settings.method


def range_candidates(plan: Plan, source: str, placement: Placement, calibration: Calibration) -> _Candidates:
    """Return a tensor's candidates; none for one whose range is not chosen from its values."""
    own = placement.settings.activations[source]
    if not isinstance(placement.settings.activation_families[source], ScaledActivations):
        return _Candidates()
    site = next(item for item in plan.activations.values() if item.source == source)
    if site.fixed_grid is not None:
        return _Candidates()
    statistics = statistics_of(plan, source, calibration)
    has_histogram = statistics.histogram is not None
    own = replace(own, method=resolve_method(own, has_histogram=has_histogram))
    tried = [own, replace(own, method="max")]
    if has_histogram and site.format.bits < BYTE:  # What holds most values wastes most of few steps.
        tried = [own, replace(own, method="mse")]
    elif has_histogram:
        tried += [replace(own, method="percentile", percentile=share) for share in _PERCENTILES]
        tried += [replace(own, method=method) for method in ("mse", "entropy")]
    found = _Candidates()
    for item in tried:
        try:
            parameters = decide(
                statistics, item, site.format, symmetric=site.symmetric, within=placement.within.get(source)
            ).parameters
        except PtqError:  # A method that cannot decide on these values is not a candidate.
            continue
        alike = (index for index, (_, other) in enumerate(found.choices) if _alike(parameters, other))
        index = next(alike, len(found.choices))
        if index == len(found.choices):
            found.choices.append((item, parameters))
        found.chosen_by.setdefault(method_of(item), index)
    return found


def grids_of(placement: Placement, calibration: Calibration) -> dict[str, QuantParameters]:
    """Return the parameters of each source of a placement, before kernels have moved their zero points."""
    settings = placement.settings
    decisions = decide_activations(
        placement.plan,
        settings.activations,
        calibration,
        settings.activation_families,
        within=placement.within,
    )
    return {source: decision.parameters for source, decision in decisions.items()}


def told_bounds(model: ir.Model, placement: Placement, calibration: Calibration) -> dict[str, ReaderBounds]:
    """Return where the ranges of a placement could end, since no reader can tell what is beyond."""
    families, plan = placement.settings.activation_families, placement.plan
    grids = grids_of(placement, calibration)
    fixed = {site.source for site in plan.activations.values() if site.fixed_grid is not None}
    return {
        source: bounds
        for source, bounds in reader_bounds(model, plan, grids).items()
        if source not in fixed and isinstance(families[source], ScaledActivations)
    }


def _alike(one: QuantParameters, other: QuantParameters) -> bool:
    ratio = float(one.scale) / float(other.scale)
    steps = abs(int(one.zero_point) - int(other.zero_point))
    return 1 - ALIKE < ratio < 1 + ALIKE and steps <= ALIKE * (one.format.qmax - one.format.qmin)
