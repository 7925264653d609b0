"""The layers whose weights can be chosen again, and the constants of a quantized graph that hold them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.numbers.arithmetic import QuantParameters
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.graph.graph_reading import input_at, sole_reader
from ptq_cli.models.operators.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.qdq.read.twin_graphs import QuantizedConstant, TwinGraphs
from ptq_cli.recovery.layers.layer_geometry import LayerGeometry, layer_geometry

SHARED_BIAS = "a bias that is computed, or that several layers share, cannot be changed"


@dataclass(frozen=True)
class IntegerConstant:
    """Where a quantized graph holds a constant.

    Attributes:
        values: name of the initializer with the integers, or with multiples of the scale.
        scale: name of that with the scale; empty of floats.
        multiples: ``values`` holds multiples of the scale, which a QuantizeLinear makes integers of.
    """

    values: str
    scale: str
    multiples: bool = False


@dataclass(frozen=True, kw_only=True)
class QuantizedLayer:
    """A layer whose weight can be chosen again.

    Attributes:
        name: the node's name.
        site: of the weight.
        geometry: how the weight meets its inputs.
        reads, makes: names of the tensors in the float model: what the layer reads, and its products.
        parameters: of what it reads; None if that is not quantized.
        weight: where the quantized graph holds the weight.
        bias: where it holds the bias; None if there is none that can be changed.
        bias_apart: the bias is added by an operator of its own.
        free: its scales may be chosen again, too.
    """

    name: str
    site: WeightSite
    geometry: LayerGeometry
    reads: str
    makes: str
    parameters: QuantParameters | None
    weight: IntegerConstant
    bias: IntegerConstant | None
    bias_apart: bool
    free: bool


def quantized_layers(
    twins: TwinGraphs, plan: Plan, free: Mapping[WeightSite, bool]
) -> tuple[dict[str, QuantizedLayer], dict[str, str]]:
    """Return the layers that can be recovered, and why the others cannot, both by name.

    Args:
        twins: the float and the quantized model.
        plan: of the quantized one.
        free: whether the scales of a weight may be chosen again; a weight whose quantizer has no evenly
            spread integers is not in it.
    """
    nodes = {node.name: node for node in twins.float_model.graph}
    constants = {(item.node.name, item.input_index): item for item in twins.constants}
    layers: dict[str, QuantizedLayer] = {}
    refused: dict[str, str] = {}
    for site in plan.weights:
        if site.dynamic:
            refused[site.node] = "ranges of its activations are found at each run"
            continue
        constant = constants.get((site.node, site.input_index))
        node = nodes.get(site.node)
        if node is None:
            refused[site.node] = "layers inside other operators, such as an If, are not supported"
            continue
        if site not in free or constant is None:
            refused[site.node] = "the quantizer has no evenly spread integers"
            continue
        found = _layer(twins, plan, node, site, constant, free=free[site])
        if isinstance(found, str):
            refused[site.node] = found
        else:
            layers[site.node] = found
    return layers, refused


def _layer(
    twins: TwinGraphs, plan: Plan, node: ir.Node, site: WeightSite, constant: QuantizedConstant, *, free: bool
) -> QuantizedLayer | str:
    if not site.format.signed:
        return "weights with zero points are left as they were rounded"
    if not constant.sources:
        return "an operator of the runtime reads its integers, and has scales of its own"
    place = _integers(constant)
    if place is None:
        return "a weight that several layers share is left to all of them"
    shape = tuple(constant.floats.const_value.shape.numpy()) if constant.floats.const_value else ()
    geometry = layer_geometry(node, site, shape)
    if isinstance(geometry, str):
        return geometry
    read = node.inputs[0]
    assert read is not None  # noqa: S101 - a layer with a weight reads something else, too
    source = constant.node.inputs[0]
    producer = source.producer() if source is not None else None
    pair = twins.pairs.get(read.name or "")
    is_paired = pair is not None and producer is not None and producer.inputs[0] is pair.integers
    bias = _bias(twins, plan, site, constant)
    if isinstance(bias, str):
        return bias
    return QuantizedLayer(
        name=node.name or "",
        site=site,
        geometry=geometry,
        reads=read.name or "",
        makes=node.outputs[0].name or "",
        parameters=pair.parameters if pair is not None and is_paired else None,
        weight=place,
        bias=bias.place if bias is not None else None,
        bias_apart=bias is not None and bias.is_apart,
        free=free and (site.axis is not None or site.block_size is not None),
    )


def _integers(constant: QuantizedConstant) -> IntegerConstant | None:
    """Return where a constant's integers lie, if nobody else reads them."""
    dequantize = constant.sources[-1]
    if dequantize.op_type != DEQUANTIZE or sole_reader(dequantize.outputs[0]) is None:
        return None
    value, scale = dequantize.inputs[0], dequantize.inputs[1]
    if value is None or scale is None or scale.const_value is None:
        return None
    multiples = False
    if value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in ("Cast", QUANTIZE) or sole_reader(value) is None:
            return None
        multiples = producer.op_type == QUANTIZE
        value = producer.inputs[0]
    if value is None or value.const_value is None or sole_reader(value) is None:
        return None
    if any(use.node not in constant.sources for use in scale.uses()):
        return None
    return IntegerConstant(value.name or "", scale.name or "", multiples)


@dataclass(frozen=True)
class _Bias:
    place: IntegerConstant
    is_apart: bool


def _bias(twins: TwinGraphs, plan: Plan, site: WeightSite, weight: QuantizedConstant) -> _Bias | str | None:
    """Return where the bias of a layer lies; None without one, or why it cannot be changed."""
    channels = weight.floats.shape[site.axis] if site.axis is not None and weight.floats.shape else None
    for bias in plan.biases:
        if bias.weight != site:
            continue
        for constant in twins.constants:
            if (constant.node.name, constant.input_index) == (bias.node, bias.input_index):
                place = _integers(constant)
                return _Bias(place, bias.node != site.node) if place is not None else SHARED_BIAS
    plain = input_at(weight.node, 2) if weight.node.op_type in ("Conv", "ConvTranspose", "Gemm") else None
    if plain is None:
        return None
    if plain.const_value is None or sole_reader(plain) is None:
        return SHARED_BIAS
    if site.block_size is None and channels is not None and plain.const_value.size != channels:
        return "a bias has to be one number for each output channel"
    return _Bias(IntegerConstant(plain.name or "", ""), is_apart=False)


def constant_array(model: ir.Model, name: str) -> Array:
    """Return the values of an initializer, those of 4 bits as int8."""
    with mapped(model.graph.initializers[name]) as array:
        return (
            array.astype(np.int8) if array.dtype.itemsize == 1 and array.dtype.kind == "V" else array.copy()
        )


def is_changed(model: ir.Model, arrays: Mapping[str, Array]) -> bool:
    """Return whether a graph holds other values of one of these initializers."""
    held = {name: constant_array(model, name) for name in arrays}
    return any(not np.array_equal(held[name], arrays[name].astype(held[name].dtype)) for name in arrays)


def replace_constants(model: ir.Model, arrays: Mapping[str, Array]) -> None:
    """Give initializers of a graph other values of the same type.

    Edge case:
        A name that the graph does not have is passed over: a part of a graph has some of its constants.
    """
    for name, array in arrays.items():
        value = model.graph.initializers.get(name)
        if value is not None and value.dtype is not None:
            values = np.ascontiguousarray(array).astype(value.dtype.numpy())
            value.const_value = ir.Tensor(values, dtype=value.dtype, name=name)
