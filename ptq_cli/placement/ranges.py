"""What the settings of each tensor decide, within its readers' bounds: from statistics to parameters.

A HardSwish is 0 wherever it reads less than -3, and a Sigmoid in integers is 0 or 1 at both ends. What a
range has beyond that costs the values between half of their steps and more: a convolution before a HardSwish
often reaches as far below 0 as above it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.decide import ANY_SCALE, Decision, ScaleRules, decide
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import ZERO_AMAX, QuantParameters
from ptq_cli.core.errors import NonFiniteActivationError, StaleCalibrationError
from ptq_cli.models.graph_reading import every_value
from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.quantizer_families import ActivationFamily
from ptq_cli.recipe.sections import AmaxSettings

ReaderBounds = tuple[float, float]  # the lowest and the highest value that matter; infinite where all do
UNBOUNDED: ReaderBounds = (-math.inf, math.inf)
_Values = npt.NDArray[np.float64]

# Where functions are looked at: those that are flat are so beyond 32, the others are far away at 700.
_POINTS: _Values = np.concatenate([[-700.0], np.arange(-3200, 3201) / 100.0, [700.0]])
_STEPS = 0.5  # of the result's grid: rounding moves it by as much
ROUNDING = 1e-9  # of the functions here, where the result is not rounded at all


def reader_bounds(
    model: ir.Model, plan: Plan, grids: Mapping[str, QuantParameters]
) -> dict[str, ReaderBounds]:
    """Return the bounds of the sources whose grids reach beyond what their readers can tell.

    Values beyond may be clipped to them: that moves the result of no reader by more than ``_STEPS`` of its
    own grid, which it is rounded to anyway. A result that stays float moves by nothing.

    Edge case: A tensor that anything else reads, or that is an output of the model, has no bounds.
    """
    values = {value.name or "": value for value in every_value(model.graph)}
    found: dict[str, ReaderBounds] = {}
    for source in plan.sources:
        tensors = [name for name, site in plan.activations.items() if site.source == source]
        bounds = [_of_tensor(values[name], source, plan, grids) for name in tensors]
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        own_low, own_high = _ends(grids[source])
        # 0 is always on the grid, so no range ends before it.
        if min(low, 0.0) > own_low or max(high, 0.0) < own_high:
            found[source] = min(low, 0.0), max(high, 0.0)
    return found


def _of_tensor(
    value: ir.Value, source: str, plan: Plan, grids: Mapping[str, QuantParameters]
) -> ReaderBounds:
    if value.is_graph_output() or plan.activations[value.name or ""].symmetric:
        return UNBOUNDED
    low, high = math.inf, -math.inf
    for reader, _ in value.uses():
        result = plan.activations.get(reader.outputs[0].name or "")
        if result is not None and result.source == source:
            continue  # It moves values, and its own readers are asked.
        function = _function_of(reader, value)
        if function is None:
            return UNBOUNDED
        step = float(grids[result.source].scale) if result is not None else 0.0
        found = saturated(function, _STEPS * step)
        low, high = min(low, found[0]), max(high, found[1])
    return (low, high) if low < high else UNBOUNDED


def saturated(function: Callable[[_Values], _Values], tolerance: float) -> ReaderBounds:
    """Return the values before and behind which a function changes by at most a tolerance.

    Example:
        >>> saturated(FUNCTIONS["HardSwish"], 0.0), saturated(np.tanh, 0.01)
        ((-3.0, inf), (-2.65, 2.65))
    """
    found = function(_POINTS)
    ends = []
    for points, made in ((_POINTS, found), (_POINTS[::-1], found[::-1])):
        moved = np.abs(made - made[0]) > tolerance + ROUNDING
        # Of a function that never changes, or changes at once, nothing is known.
        first = int(moved.argmax())
        ends.append(float(points[first - 1]) if first > 1 else math.inf)
    return -math.inf if ends[0] == math.inf else ends[0], ends[1]


def _function_of(node: ir.Node, value: ir.Value) -> Callable[[_Values], _Values] | None:
    """Function that a reader computes of a value alone, if it is flat somewhere."""
    if node.domain:
        return None
    if node.op_type == "HardSigmoid":
        alpha = node.attributes.get_float("alpha", 0.2)
        beta = node.attributes.get_float("beta", 0.5)
        return lambda x: np.clip(alpha * x + beta, 0.0, 1.0)
    if node.op_type == "Mul":
        makers = [item.producer() for item in node.inputs if item is not None and item is not value]
        gates = [
            _function_of(maker, value) for maker in makers if maker is not None and value in maker.inputs
        ]
        gate = gates[0] if len(gates) == 1 else None
        # SiLU, as ONNX writes it: a value times a function of itself.
        return (lambda x: x * gate(x)) if gate is not None else None
    return FUNCTIONS.get(node.op_type)


def _ends(grid: QuantParameters) -> ReaderBounds:
    low, high = (
        (end - int(grid.zero_point)) * float(grid.scale) for end in (grid.format.qmin, grid.format.qmax)
    )
    return low, high


def _gelu(x: _Values) -> _Values:
    return np.asarray([value * 0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in x.tolist()])


# Functions of a value by operator, with its default attributes.
FUNCTIONS: Mapping[str, Callable[[_Values], _Values]] = {
    "Gelu": _gelu,
    "HardSwish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "Sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "Tanh": np.tanh,
}


# Operators whose result has all the values of their first input and no others, and those with some of them.
VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_PARTS = frozenset({"Gather", "MaxPool", "Slice", "Split"})


def with_moved_statistics(calibration: Calibration, graph: ir.Graph) -> Calibration:
    """Return a calibration that also has the statistics of tensors with the same values as a measured one.

    What is excluded moves the place where a tensor is quantized behind a Reshape or before it, and the
    calibration measured the other side.
    """
    statistics = dict(calibration.statistics)
    pairs = [
        (node.inputs[0].name or "", node.outputs[0].name or "")
        for node in graph
        if node.op_type in VIEWS and node.domain == "" and node.inputs and node.inputs[0] is not None
    ]
    steps = [*pairs, *((result, source) for source, result in reversed(pairs))]
    for known, other in steps:
        if known in statistics and other not in statistics:
            statistics[other] = statistics[known]
    return (
        calibration
        if len(statistics) == len(calibration.statistics)
        else replace(calibration, statistics=statistics)
    )


def with_statistics_of_parts(calibration: Calibration, plan: Plan, graph: ir.Graph) -> Calibration:
    """Return a calibration with the statistics of the whole for tensors of a plan that are parts of it.

    Where a layer in float cuts a tensor, the calibration measured it before the cut alone; the range of the
    whole holds the part's.
    """
    statistics = dict(calibration.statistics)
    missing = set(plan.measured) - set(statistics)
    for node in graph if missing else ():
        whole = (
            node.inputs[0].name if node.op_type in _PARTS and node.domain == "" and node.inputs[0] else None
        )
        if whole in statistics:
            statistics |= {value.name: statistics[whole] for value in node.outputs if value.name in missing}
    return replace(calibration, statistics=statistics) if missing else calibration


_MOST_NAMES = 5  # that an error lists


def decide_activations(
    plan: Plan,
    settings: Mapping[str, AmaxSettings],
    calibration: Calibration,
    families: Mapping[str, ActivationFamily] | None = None,
    rules: ScaleRules = ANY_SCALE,
    within: Mapping[str, ReaderBounds] = MappingProxyType({}),
) -> dict[str, Decision]:
    """Return the decision for each tensor whose statistics decide; without ``families`` all are scaled.

    ``within`` has the bounds of some sources, of scaled quantizers alone.

    Raises: MissingStatisticError: a method needs statistics that were not kept.
    """
    decisions: dict[str, Decision] = {}
    for site in plan.activations.values():
        if site.source in decisions:
            continue
        statistics = statistics_of(plan, site.source, calibration)
        decisions[site.source] = decide(
            statistics,
            settings[site.source],
            site.format,
            symmetric=site.symmetric,
            family=families[site.source] if families is not None else None,
            rules=replace(rules, fixed=site.fixed_grid),
            within=within.get(site.source),
        )
    return decisions


def statistics_of(plan: Plan, source: str, calibration: Calibration) -> TensorStatistics:
    """Statistics that decide a source's parameters: its own, or the union of those tied to it."""
    return union_of(plan.members(source), calibration)


def union_of(names: Iterable[str], calibration: Calibration) -> TensorStatistics:
    """Return the statistics of the values of all these tensors."""
    members = tuple(names)
    missing = next((name for name in members if name not in calibration.statistics), None)
    if missing is not None:
        raise StaleCalibrationError(
            f"the calibration has no statistics for '{missing}'", hint="run ptq calibrate again"
        )
    return reduce(TensorStatistics.merge, (calibration.statistics[name] for name in members))


def require_ranges(plan: Plan, calibration: Calibration) -> None:
    """Raise if nothing says what the range of a tensor is that is quantized."""
    missing = [name for name in plan.measured if name not in calibration.statistics]
    if missing:
        shown = ", ".join(f"'{name}'" for name in missing[:_MOST_NAMES])
        more = f" and {len(missing) - _MOST_NAMES:,} more" if len(missing) > _MOST_NAMES else ""
        hint = (
            f"run ptq calibrate again with --target {plan.target} and the same --exclude and --set override"
        )
        if not calibration.statistics:
            hint = "run ptq calibrate again with these settings: this calibration was for weights alone"
        raise StaleCalibrationError(
            f"target '{plan.target}' quantizes tensors that the calibration did not measure: {shown}{more}",
            hint=hint,
        )
    for source in plan.sources:
        if statistics_of(plan, source, calibration).rangeless:
            raise NonFiniteActivationError(
                f"tensor '{source}' had no finite value in any sample, so it has no range",
                hint="fix the float model, or calibrate on other samples; ptq inspect --tensor shows the "
                "counts",
            )


def never_seen(calibration: Calibration) -> tuple[str, ...]:
    """Return the tensors that had not a single value, such as those of a branch that was never taken."""
    return tuple(name for name, item in calibration.statistics.items() if item.unseen)


def unsearched(decisions: Mapping[str, Decision]) -> dict[str, str]:
    """Return the tensors whose method had only one candidate, with the method.

    A tensor that was always 0 has no range to choose; ``ptq calibrate`` has said so.
    """
    return {
        source: decision.method
        for source, decision in decisions.items()
        if decision.choice.candidates == 1 and decision.choice.amax > ZERO_AMAX
    }
