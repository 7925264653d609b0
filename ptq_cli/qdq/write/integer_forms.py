"""Write an operator that the target has no integer kernel for in operators that it has one for.

Requires: the operator's input and result have their pairs. Ensures: the nodes between the pairs compute what
the operator does, and the last of them has its name.

Source:
    Howard et al., "Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, section 5.2, for HardSwish.
"""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import IntegerFormat, NumberFormat
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, every_node
from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import CLAMPED_SUM
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.write.pair_nodes import (
    add_initializer,
    make_add,
    make_dequantize,
    make_quantize,
    put_in_front,
    take_place,
)

Values = npt.NDArray[np.float64]
SHIFT, UPPER = 3.0, 6.0
"""HardSwish is ``x * clip(x + 3, 0, 6) / 6``."""


def write_integer_forms(model: ir.Model, plan: Plan) -> None:
    """Replace each quantized operator whose plan says so by its integer form."""
    clamped = {layer.name for layer in plan.layers if layer.quantized and layer.written_as == CLAMPED_SUM}
    names = FreshNames.of(model.graph) if clamped else FreshNames(set())
    for node in [item for item in every_node(model.graph) if item.name in clamped]:
        _write_clamped_sum(model.graph, node, names)


def gate_step(parameters: QuantParameters) -> float:
    """Return the step of ``clip(x + 3, 0, 6)``, whose range ends where it does for the grid of x.

    Example:
        >>> from ptq_cli.core.arithmetic import parameters_from_range
        >>> from ptq_cli.core.formats import UINT8
        >>> [round(gate_step(parameters_from_range(-4.0, high, UINT8)) * 255, 2) for high in (1.0, 8.0)]
        [4.0, 6.0]
    """
    format = parameters.format
    end = (format.qmax - int(parameters.zero_point)) * float(parameters.scale)
    return min(UPPER, end + SHIFT) / _steps_of(format)


def _steps_of(format: NumberFormat) -> float:
    """Return the steps of the gate: those of all bits of the type, however few of them x has."""
    whole = format.whole if isinstance(format, IntegerFormat) else format
    return whole.qmax - whole.qmin


def clamped_sum(x: Values, parameters: QuantParameters) -> Values:
    """Return what the integer form computes of values on their grid, before its result is quantized."""
    step = gate_step(parameters)
    steps = _steps_of(parameters.format)
    found: Values = x * (np.clip(np.rint((x + SHIFT) / step), 0, steps) * (step / UPPER))
    return found


def hard_swish(x: Values) -> Values:
    """Return ``x * clip(x + 3, 0, 6) / 6``."""
    found: Values = x * np.clip(x + SHIFT, 0.0, UPPER) / UPPER
    return found


def _write_clamped_sum(main: ir.Graph, node: ir.Node, names: FreshNames) -> None:
    """Write a HardSwish as an Add, whose pair is the Clip and the division, and a Mul.

    The QuantizeLinear behind the Add has the range [0, 6], so that the Clip needs no operator, or less of it
    where x ends below 3. The DequantizeLinear behind that has a sixth of its scale, so that the division
    needs none.
    """
    x = node.inputs[0]
    before = dequantized_by(x)
    if x is None or before is None:
        raise RuntimeError(f"the input of '{node.name}' has no DequantizeLinear")
    grid = grid_of(before)
    parameters = grid.parameters
    if parameters is None:
        raise RuntimeError(f"the input of '{node.name}' has no scale of its own")
    name, format = node.name or node.op_type, parameters.format
    step = gate_step(parameters)
    whole = format.whole if isinstance(format, IntegerFormat) else format
    zero = np.asarray(whole.qmin, format.storage)

    def constant(role: str, value: Array) -> ir.Value:
        return add_initializer(main, names.claim(f"{name}.{role}"), value)

    lowest = constant("gate.zero_point", zero)
    one = constant("shift", np.asarray(1, format.storage))
    nothing = constant("shift.zero_point", np.asarray(0, format.storage))
    three = make_dequantize(
        one,
        constant("shift.scale", np.asarray(SHIFT, np.float32)),
        nothing,
        names.claim(f"{name}/shift/DequantizeLinear"),
    )
    shifted = make_add(x, three.outputs[0], names.claim(f"{name}/Add"))
    quantize = make_quantize(
        shifted.outputs[0],
        constant("gate.scale", np.asarray(step, np.float32)),
        lowest,
        names.claim(f"{name}/gate/QuantizeLinear"),
    )
    dequantize = make_dequantize(
        quantize.outputs[0],
        constant("gate.sixth", np.asarray(step / UPPER, np.float32)),
        lowest,
        names.claim(f"{name}/gate/DequantizeLinear"),
    )
    put_in_front(node, three, shifted, quantize, dequantize)
    product = ir.node("Mul", [x, dequantize.outputs[0]], name=name)
    take_place(node, product)
