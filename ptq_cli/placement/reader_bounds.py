"""The values of a tensor beyond which none of its readers can tell the difference.

A HardSwish is 0 wherever it reads less than -3, and a Sigmoid in integers is 0 or 1 at both ends. What a
range has beyond that costs the values between half of their steps and more: a convolution before a HardSwish
often reaches as far below 0 as above it.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.models.graph_reading import every_value
from ptq_cli.plan.sites import Plan

Bounds = tuple[float, float]  # the lowest and the highest value that matter; infinite where all do
UNBOUNDED: Bounds = (-math.inf, math.inf)
Values = npt.NDArray[np.float64]

# Where functions are looked at: those that are flat are so beyond 32, the others are far away at 700.
POINTS: Values = np.concatenate([[-700.0], np.arange(-3200, 3201) / 100.0, [700.0]])
STEPS = 0.5  # of the result's grid: rounding moves it by as much
ROUNDING = 1e-9  # of the functions here, where the result is not rounded at all


def reader_bounds(model: ir.Model, plan: Plan, grids: Mapping[str, QuantParameters]) -> dict[str, Bounds]:
    """Return the bounds of the sources whose grids reach beyond what their readers can tell.

    Values beyond may be clipped to them: that moves the result of no reader by more than ``STEPS`` of its own
    grid, which it is rounded to anyway. A result that stays float moves by nothing.

    Edge case:
        A tensor that anything else reads, or that is an output of the model, has no bounds.
    """
    values = {value.name or "": value for value in every_value(model.graph)}
    found: dict[str, Bounds] = {}
    for source in plan.sources:
        tensors = [name for name, site in plan.activations.items() if site.source == source]
        bounds = [_of_tensor(values[name], source, plan, grids) for name in tensors]
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        own_low, own_high = _ends(grids[source])
        # 0 is always on the grid, so no range ends before it.
        if min(low, 0.0) > own_low or max(high, 0.0) < own_high:
            found[source] = min(low, 0.0), max(high, 0.0)
    return found


def _of_tensor(value: ir.Value, source: str, plan: Plan, grids: Mapping[str, QuantParameters]) -> Bounds:
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
        found = saturated(function, STEPS * step)
        low, high = min(low, found[0]), max(high, found[1])
    return (low, high) if low < high else UNBOUNDED


def saturated(function: Callable[[Values], Values], tolerance: float) -> Bounds:
    """Return the values before and behind which a function changes by at most a tolerance.

    Example:
        >>> saturated(FUNCTIONS["HardSwish"], 0.0), saturated(np.tanh, 0.01)
        ((-3.0, inf), (-2.65, 2.65))
    """
    found = function(POINTS)
    ends = []
    for points, made in ((POINTS, found), (POINTS[::-1], found[::-1])):
        moved = np.abs(made - made[0]) > tolerance + ROUNDING
        # Of a function that never changes, or changes at once, nothing is known.
        first = int(moved.argmax())
        ends.append(float(points[first - 1]) if first > 1 else math.inf)
    return -math.inf if ends[0] == math.inf else ends[0], ends[1]


def _function_of(node: ir.Node, value: ir.Value) -> Callable[[Values], Values] | None:
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


def _ends(grid: QuantParameters) -> Bounds:
    low, high = (
        (end - int(grid.zero_point)) * float(grid.scale) for end in (grid.format.qmin, grid.format.qmax)
    )
    return low, high


def _sigmoid(x: Values) -> Values:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _gelu(x: Values) -> Values:
    return np.asarray([value * 0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in x.tolist()])


FUNCTIONS: Mapping[str, Callable[[Values], Values]] = {
    "Gelu": _gelu,
    "HardSwish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
}
"""Functions of a value by operator, with its default attributes."""
