"""Integers of the weights of recurrent layers: those that an integer LSTM reads, and factors of a product."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import PerAxes
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames
from ptq_cli.models.integer_operators import KERNEL_INPUTS, KERNEL_PARAMETERS, MICROSOFT
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.pair_nodes import make_cast, make_mul, put_in_front
from ptq_cli.qdq.write.weight_quantizer import StoredWeight


def in_kernel_layout(stored: StoredWeight) -> StoredWeight:
    """Return a weight as DynamicQuantizeLSTM reads it: [directions, inputs, channels].

    Source: ONNX Runtime's ContribOperators.md, com.microsoft.DynamicQuantizeLSTM.
    """
    return replace(stored, integers=np.ascontiguousarray(stored.array().swapaxes(1, 2)))


def kernel_parameters(found: QuantParameters, directions: int) -> dict[str, Array]:
    """Return scale and zero point of a weight, for each direction: its own, or those that all share.

    Shapes:
        (directions, channels), or (directions,) for one scale.
    """
    own = isinstance(found.granularity, PerAxes)
    shape = found.scale.shape if own else (directions, *found.scale.shape)
    return {
        "scale": np.broadcast_to(found.scale, shape).astype(np.float32),
        "zero_point": np.zeros(shape, np.int8),
    }


def read_by_kernel(node: ir.Node, site: WeightSite, stored: tuple[ir.Value, ...]) -> None:
    """Let the operator on integers take a node's place, and read integers, scale and zero point.

    Requires: ``node`` is the LSTM that the site names, or became the operator with its other weight. Ensures:
    names, outputs and other inputs are as before.
    """
    if node.op_type != site.kernel:
        node.op_type, node.domain = site.kernel, MICROSOFT
        node.attributes.pop("layout", None)  # The operator does not have it, and it is 0.
        node.resize_inputs(KERNEL_INPUTS)
    integers, scale, zero_point = stored
    place = KERNEL_PARAMETERS[site.input_index]
    for index, value in ((site.input_index, integers), (place, scale), (place + 1, zero_point)):
        node.replace_input_with(index, value)


def add_product(
    names: FreshNames, reader: ir.Node, tensor: str, factors: tuple[ir.Value, ir.Value]
) -> ir.Value:
    """Add the Cast and the Mul that make floats of integers and a scale, and return the floats."""
    integers, scale = factors
    cast = make_cast(integers, ir.DataType.FLOAT, names.claim(f"{tensor}/Cast"))
    product = make_mul(cast.outputs[0], scale, names.claim(f"{tensor}/Mul"))
    put_in_front(reader, cast, product)
    return product.outputs[0]
