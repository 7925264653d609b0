"""Pass: an operator without an integer kernel is written in operators that have one: HardSwish.

Requires: the operator's input and result have their pairs. Ensures: the nodes between the pairs compute what
the operator does, and the last of them has its name.

Source:
    Howard et al., "Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, section 5.2.
"""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import IntegerFormat, NumberFormat
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import CLAMPED_SUM
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.write.new_nodes import NewNodes, new_node, put_in_front, take_place

Values = npt.NDArray[np.float64]
SHIFT, UPPER = 3.0, 6.0  # HardSwish is ``x * clip(x + 3, 0, 6) / 6``


def write_integer_forms(model: ir.Model, plan: Plan) -> None:
    """Replace each quantized operator whose plan says so by its integer form."""
    clamped = {layer.name for layer in plan.layers if layer.quantized and layer.written_as == CLAMPED_SUM}
    new = NewNodes(model.graph) if clamped else None
    for node in [item for item in every_node(model.graph) if item.name in clamped]:
        if new is not None:
            _write_clamped_sum(new, node)


def gate_step(parameters: QuantParameters) -> float:
    """Return the step of ``clip(x + 3, 0, 6)``, whose range ends where it does for the grid of x.

    Example:
        >>> from ptq_cli.core.arithmetic import parameters_from_range
        >>> from ptq_cli.core.formats import UINT8
        >>> [round(gate_step(parameters_from_range(-4.0, high, UINT8)) * 255, 2) for high in (1.0, 8.0)]
        [4.0, 6.0]
    """
    end = (parameters.format.qmax - int(parameters.zero_point)) * float(parameters.scale)
    whole = _whole(parameters.format)
    return min(UPPER, end + SHIFT) / (whole.qmax - whole.qmin)


def _whole(format: NumberFormat) -> NumberFormat:
    """Return the format of the gate: that of all bits of the type, however few of them x has."""
    return format.whole if isinstance(format, IntegerFormat) else format


def clamped_sum(x: Values, parameters: QuantParameters) -> Values:
    """Return the result of the integer form for values on their grid, before it is quantized."""
    step, whole = gate_step(parameters), _whole(parameters.format)
    gate = np.clip(np.rint((x + SHIFT) / step), 0, whole.qmax - whole.qmin)
    found: Values = x * (gate * (step / UPPER))
    return found


def hard_swish(x: Values) -> Values:
    """Return ``x * clip(x + 3, 0, 6) / 6``."""
    found: Values = x * np.clip(x + SHIFT, 0.0, UPPER) / UPPER
    return found


def _write_clamped_sum(new: NewNodes, node: ir.Node) -> None:
    """Write a HardSwish as an Add, whose pair is the Clip and the division, and a Mul.

    The QuantizeLinear behind the Add has the range [0, 6], so that the Clip needs no operator, or less of it
    where x ends below 3. The DequantizeLinear behind that has a sixth of its scale, so that the division
    needs none.
    """
    x, before = node.inputs[0], dequantized_by(node.inputs[0])
    parameters = grid_of(before).parameters if before is not None else None
    if x is None or parameters is None:
        raise RuntimeError(f"the input of '{node.name}' has no DequantizeLinear with one scale")
    name, storage = node.name or node.op_type, parameters.format.storage
    step, lowest = gate_step(parameters), _whole(parameters.format).qmin

    def constant(role: str, value: float, dtype: npt.DTypeLike = np.float32) -> ir.Value:
        return new.constant(f"{name}.{role}", np.asarray(value, dtype))

    zero_point = constant("gate.zero_point", lowest, storage)
    one, nothing = constant("shift", 1, storage), constant("shift.zero_point", 0, storage)
    three = new.dequantize(one, (constant("shift.scale", SHIFT), nothing), f"{name}/shift")
    sum_name = new.claim(f"{name}/Add")
    shifted = new_node("Add", [x, three.outputs[0]], sum_name, dtype=x.dtype, shape=x.shape)
    quantize = new.quantize(shifted.outputs[0], constant("gate.scale", step), zero_point, f"{name}/gate")
    sixth = constant("gate.sixth", step / UPPER)
    gate = new.dequantize(quantize.outputs[0], (sixth, zero_point), f"{name}/gate")
    put_in_front(node, three, shifted, quantize, gate)
    take_place(node, ir.node("Mul", [x, gate.outputs[0]], name=name))
