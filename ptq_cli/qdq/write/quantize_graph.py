"""The passes in order: float model and parameters in, quantized model out; the pass of activations.

ONNX Runtime has kernels for 8 bits alone, and a QuantizeLinear saturates at the ends of its type: fewer bits
have a Clip of the integers between the two, around which operators keep their integer kernels.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters, quantize
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN, IntegerFormat
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import every_node, every_value, input_at, short_name
from ptq_cli.plan.embedding_tables import tied_tables
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.proof.target_faults import structure_faults
from ptq_cli.qdq.write.block_weights import dynamic_pair
from ptq_cli.qdq.write.constant_pairs import NamesBySite, share_tables, store_constants, turned_names
from ptq_cli.qdq.write.new_nodes import NewNodes, new_node, own_graph
from ptq_cli.qdq.write.operator_forms import write_float_forms, write_integer_forms
from ptq_cli.qdq.write.site_parameters import Parameters

OPSET_OF_OUTPUT_TYPES = 21  # QuantizeLinear got ``output_dtype``
PairConstants = tuple[ir.Value, ir.Value]  # Scale and zero point of a pair


def insert_activation_pairs(model: ir.Model, plan: Plan, parameters: Mapping[str, QuantParameters]) -> None:
    """Insert a pair behind each site's tensor, in the graph that computes it or is fed with it.

    Requires: every site names a value of the model. Ensures: no operator of an integer layer, or of one that
    is computed in float between pairs, reads a site's float value; in a nested graph it reads a
    DequantizeLinear of that graph, because a runtime fuses within one graph only.

    Where the tensor comes out of a float operator, float readers and the graph's output go on reading it as
    it is: that costs nothing, and keeps a residual stream exact. Where it comes out of an integer operator
    there is no float value to read; a site that is a graph output stays one, with its name, behind the pair.
    """
    new = NewNodes(model.graph)
    values = {value.name: value for value in every_value(model.graph)}
    # What makes integers itself reads floats, and returns them.
    made = {layer.name for layer in plan.layers if layer.quantized and not layer.dynamic}
    integer = made | {layer.name for layer in plan.layers if layer.between_pairs}
    # Sites that share parameters share the constants too, so that a reader of the file sees that.
    shared: dict[str, PairConstants] = {}
    bounds: dict[IntegerFormat, list[ir.Value]] = {}
    for site in plan.activations.values():
        grid = parameters[site.tensor]
        if site.format == FLOAT4_E2M1:
            _insert_blocks(new, values[site.tensor], grid, integer)
            continue
        if (name := site.source) not in shared:
            zeros = grid.zero_point.astype(grid.format.storage)
            scale = new.constant(f"{short_name(name)}.scale", grid.scale)
            shared[name] = scale, new.constant(f"{short_name(name)}.zero_point", zeros)
        quantizer = _insert_pair(new, values[site.tensor], shared[name], integer)
        if isinstance(site.format, IntegerFormat) and site.format != site.format.whole:
            _clip_integers(new, quantizer, site.format, bounds)


def _insert_blocks(new: NewNodes, value: ir.Value, grid: QuantParameters, integer: set[str]) -> None:
    """Let integer readers of a value read 4-bit floats in blocks, which are made at each run."""
    readers = [(node, index) for node, index in value.uses() if node.name in integer]
    scale = np.asarray(grid.scale / np.float32(FLOAT8_E4M3FN.largest), np.float32)
    nodes = dynamic_pair(new, value, new.constant(f"{short_name(value.name or '')}.scale", scale))
    _insert_behind(value, *nodes)
    for node, index in readers:
        node.replace_input_with(index, nodes[-1].outputs[0])


def _insert_behind(value: ir.Value, *nodes: ir.Node) -> None:
    """Insert nodes behind what computes a value, or at the beginning of the graph that is fed with it."""
    graph, producer = own_graph(value), value.producer()
    if producer is None:
        graph.insert_before(next(iter(graph)), nodes)
    else:
        graph.insert_after(producer, nodes)


def _insert_pair(new: NewNodes, value: ir.Value, constants: PairConstants, integer: set[str]) -> ir.Node:
    producer, graph = value.producer(), own_graph(value)
    from_integers = producer is not None and producer.name in integer
    readers = [(node, index) for node, index in value.uses() if from_integers or node.name in integer]
    is_output, prefix = from_integers and value.is_graph_output(), short_name(value.name or "")
    quantizer = new.quantize(value, *constants, prefix)
    _insert_behind(value, quantizer)
    # An integer operator needs one of its own graph; any other reads what its own graph, or one around, has.
    homes = [node.graph if node.name in integer else graph for node, _ in readers]
    scale, zero_point = constants
    zeros = None if _may_be_left_out(new.graph, zero_point) else zero_point
    restored: dict[object, ir.Value] = {}
    for home in dict.fromkeys([*([graph] if is_output else []), *homes]):
        restorer = new.dequantize(quantizer.outputs[0], (scale, zeros), prefix)
        restored[home] = restorer.outputs[0]
        if home is graph:
            graph.insert_after(quantizer, [restorer])
        elif isinstance(home, ir.Graph):
            home.insert_before(next(iter(home)), [restorer])
    for (reader, index), home in zip(readers, homes, strict=True):
        reader.replace_input_with(index, restored[home])
    for index, output in enumerate(graph.outputs):
        if is_output and output is value:
            name = value.name
            value.name, restored[graph].name = new.claim(f"{name}.float"), name
            graph.outputs[index] = restored[graph]
    return quantizer


def _may_be_left_out(graph: ir.Graph, zero_point: ir.Value) -> bool:
    """Tell whether a DequantizeLinear says nothing of its zero point, which is 0 then.

    From opset 21 on ONNX Runtime 1.31 cannot load a model in which a Reshape, Squeeze or their like reads an
    int8 DequantizeLinear with one: it moves the pair behind the Reshape, and gives its QuantizeLinear a type
    that does not fit. Before opset 21 it is the other way round: without a zero point that pair is uint8.
    """
    array = zero_point.const_value.numpy() if zero_point.const_value is not None else None
    is_plain = array is not None and array.dtype == np.int8 and not array.any()
    return is_plain and graph.opset_imports.get("", 0) >= OPSET_OF_OUTPUT_TYPES


def _clip_integers(
    new: NewNodes, quantizer: ir.Node, format: IntegerFormat, bounds: dict[IntegerFormat, list[ir.Value]]
) -> None:
    """Let what reads a QuantizeLinear read its integers within a format, whose bounds are shared."""
    if format not in bounds:
        ends = (("low", format.qmin), ("high", format.qmax))
        bounds[format] = [
            new.constant(f"{format.name}.{end}", np.asarray(value, format.storage)) for end, value in ends
        ]
    made = quantizer.outputs[0]
    readers = tuple(made.uses())
    name = new.claim(f"{quantizer.name}/Clip")
    clip = new_node("Clip", [made, *bounds[format]], name, dtype=made.dtype, shape=made.shape)
    for reader, index in readers:
        reader.replace_input_with(index, clip.outputs[0])
    own_graph(quantizer).insert_after(quantizer, clip)


def widen_clamps(model: ir.Model, plan: Plan, parameters: Mapping[str, QuantParameters]) -> None:
    """Move the bounds of a float Clip to the ends of all 8 bits, where a Clip of integers does its work.

    Requires: the pairs are not there yet. Ensures: the integers stay the same, and ONNX Runtime finds the
    float Clip redundant; with its own bounds, inside the ends of 8 bits, it computes the operator before it
    in float.
    """
    new = NewNodes(model.graph)
    quantized = {layer.name for layer in plan.layers if layer.quantized}
    for node in list(every_node(model.graph)):
        site = plan.activations.get(node.outputs[0].name or "") if node.op_type == "Clip" else None
        if site is None or node.name not in quantized or not isinstance(site.format, IntegerFormat):
            continue
        if site.format == site.format.whole:
            continue
        grid, whole = parameters[site.tensor], site.format.whole
        for index, role, own, end in (
            (1, "min", grid.format.qmin, whole.qmin),
            (2, "max", grid.format.qmax, whole.qmax),
        ):
            bound = input_at(node, index)
            constant = bound.const_value if bound is not None else None
            if constant is not None and _becomes(constant.numpy(), grid) == own:
                value = np.asarray((end - int(grid.zero_point)) * grid.scale, constant.numpy().dtype)
                node.replace_input_with(index, new.constant(f"{node.name}.{role}", value))


def _becomes(bound: Array, grid: QuantParameters) -> int | None:
    """Return the integer that a bound becomes: if it is an end of the grid, so is all beyond the bound."""
    return int(quantize(bound.astype(np.float32).reshape(()), grid)) if bound.size == 1 else None


def quantize_in_place(model: ir.Model, plan: Plan, parameters: Parameters) -> NamesBySite:
    """Make a float model the quantized one, and return the names of the constants that hold what was decided.

    Requires: a prepared model, a plan made for it, parameters for each site. Ensures: its Q/DQ structure is
    well formed. The checker is asked when it is stored.
    """
    write_float_forms(model, plan)
    tied = list(tied_tables(model.graph, plan.weights))
    names = turned_names(store_constants(model, plan, parameters), share_tables(model, tied))
    widen_clamps(model, plan, parameters.activations)
    insert_activation_pairs(model, plan, parameters.activations)
    write_integer_forms(model, plan)
    faults = list(structure_faults(model))
    if faults:
        raise RuntimeError(f"the quantized graph is malformed: {'; '.join(faults[:5])}")
    return names
