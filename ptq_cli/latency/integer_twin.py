"""A quantized copy of a model with made-up ranges, to be timed.

How long it takes does not depend on its ranges, so it can be measured where there is no calibration.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters, parameters_from_range, scale_from_amax
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.pair_operators import CLAMPS
from ptq_cli.plan.graph_questions import clip_bound
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.write.channel_padding import pad_channels
from ptq_cli.qdq.write.float_forms import write_runtime_operators
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import decide_all

RANGE = (-4.0, 4.0)


def integer_twin(model: ir.Model, plan: Plan, target: Target) -> ir.Model:
    """A quantized copy of a model for measurements of time alone."""
    twin = model.clone()
    producers = {value.name: node for node in every_node(model.graph) for value in node.outputs}

    def decide(site: ActivationSite) -> QuantParameters:
        low, high = _range(producers.get(site.source))
        if not site.symmetric and isinstance(site.format, IntegerFormat):
            return parameters_from_range(low, high, site.format)
        scale = scale_from_amax(max(-low, high), site.format)
        middle = 0 if site.format.signed else int(site.format.qmax + 1) // 2
        return QuantParameters(scale, np.asarray(middle), site.format)

    quantize_in_place(twin, plan, decide_all(twin, plan, decide))
    write_runtime_operators(twin, plan)
    pad_channels(twin, target.weight.channel_multiple, target.activation.channel_multiple)
    return twin


def _range(producer: ir.Node | None) -> tuple[float, float]:
    """A range that makes a Relu or Clip before it redundant, as a calibrated one does."""
    if producer is None or producer.op_type not in CLAMPS:
        return RANGE
    low, high = (
        (0.0, None) if producer.op_type == "Relu" else (clip_bound(producer, 1), clip_bound(producer, 2))
    )
    return (RANGE[0] if low is None else low, RANGE[1] if high is None else high)
