"""What every target promises of a quantized graph, and what one of them promises besides."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.pair_sums import exceeds_pairs
from ptq_cli.plan.refusals import rule_of
from ptq_cli.qdq.proof.operators import float_reason
from ptq_cli.qdq.proof.target_faults import structure_faults, target_faults
from ptq_cli.runtime.openvino import OPEN_VINO
from ptq_cli.runtime.products import is_signed_exact
from tests.contracts.small_graphs.exported import COMPARED, Exported, finite
from tests.unit.plan.graphs import sample, serialized, sqnr_db

LEAST_DB = 25.0  # Of noise through untrained layers, with ranges from ten batches


def the_float_model_is_left_as_it_was(made: Exported) -> None:
    assert serialized(made.model) == made.before


def the_graph_keeps_the_table(made: Exported) -> None:
    # Without the formats that an override may ask for.
    default = replace(made.target, activation=replace(made.target.activation, formats=[]))
    assert list(target_faults(made.result, default)) == []


def the_model_is_well_formed(made: Exported) -> None:
    onnx.checker.check_model(ir.to_proto(made.result), full_check=True)
    assert list(structure_faults(made.result)) == []
    names = [node.name for node in made.result.graph.all_nodes()]
    assert len(set(names)) == len(names)
    assert {node.name for node in made.model.graph.all_nodes()} <= set(names)


def inputs_and_outputs_stay_as_they_are(made: Exported) -> None:
    old, new = made.model.graph, made.result.graph
    for before, after in ((old.inputs, new.inputs), (old.outputs, new.outputs)):
        assert [(value.name, value.dtype, value.shape) for value in before] == [
            (value.name, value.dtype, value.shape) for value in after
        ]


def onnx_runtime_runs_it_near_the_float_model(made: Exported) -> None:
    for found in (made.written, made.optimized):
        for reference, other in zip(made.wanted, found, strict=True):
            assert sqnr_db(finite(reference), finite(other)) > LEAST_DB


def no_constant_is_stored_that_nobody_reads(made: Exported) -> None:
    result = made.result
    read = {value.name for node in result.graph.all_nodes() for value in node.inputs if value is not None}
    read |= {value.name for value in result.graph.outputs}
    assert set(result.graph.initializers) <= read


def int32_biases_are_only_where_they_are_promised(made: Exported) -> None:
    assert not made.plan.biases or made.target.bias.format == "int32"


def no_sum_of_two_products_saturates(made: Exported) -> None:
    nodes = {node.name: node for node in made.result.graph.all_nodes()}
    for site in made.plan.weights:
        dequantize = nodes[site.node].inputs[site.input_index].producer()
        integers = dequantize.inputs[0].const_value if dequantize is not None else None
        if site.pairs is not None and integers is not None:
            assert not exceeds_pairs(integers.numpy(), site.pairs)


EVERY_TARGET = (
    the_float_model_is_left_as_it_was,
    the_graph_keeps_the_table,
    the_model_is_well_formed,
    inputs_and_outputs_stay_as_they_are,
    onnx_runtime_runs_it_near_the_float_model,
    no_constant_is_stored_that_nobody_reads,
    int32_biases_are_only_where_they_are_promised,
    no_sum_of_two_products_saturates,
)


def every_zero_point_is_0(made: Exported) -> None:
    readers = [
        node
        for node in made.result.graph.all_nodes()
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]
    zeros = [node.inputs[2].const_value.numpy() for node in readers if len(node.inputs) > 2]
    assert {str(zero.dtype) for zero in zeros} <= {"int8"}
    assert not any(np.any(zero) for zero in zeros)


def its_rules_say_what_its_plan_does(made: Exported) -> None:
    """Of a target that cannot run here the plan is all that the rules can be held to."""
    planned = {layer.name: layer.quantized for layer in made.plan.layers}
    for node in made.result.graph.all_nodes():
        rule = rule_of(node, made.target)
        if rule is not None and rule.kind == "compute":
            reason = float_reason(node, made.target)
            assert (reason == "") == planned[node.name], f"{node.name}: {reason}"


def weights_are_floats_on_the_grid_behind_a_pair(made: Exported) -> None:
    nodes = {node.name: node for node in made.result.graph.all_nodes()}
    for site in made.plan.weights:
        dequantize = nodes[site.node].inputs[site.input_index].producer()
        quantize = dequantize.inputs[0].producer()
        assert (quantize.op_type, dequantize.op_type) == ("QuantizeLinear", "DequantizeLinear")
        on_grid, scale = (value.const_value.numpy() for value in quantize.inputs[:2])
        shape = [1] * on_grid.ndim
        if site.axis is not None:
            shape[site.axis] = -1
        steps = on_grid / scale.reshape(shape)
        assert np.allclose(steps, np.rint(steps), atol=1e-3)
        assert np.max(np.abs(steps), initial=0.0) <= 127.001


ONE_TARGET = {
    "qnn": (its_rules_say_what_its_plan_does,),
    "generic": (every_zero_point_is_0, its_rules_say_what_its_plan_does),
    "tensorrt": (
        every_zero_point_is_0,
        its_rules_say_what_its_plan_does,
        weights_are_floats_on_the_grid_behind_a_pair,
    ),
}


# What ``openvino`` promises besides: what OpenVINO makes integer of the graph, and what it computes.


# Graphs that OpenVINO 2026.4 does not load or run, and what it says.
REFUSED = {"matmul_of_doubles": "does not support f64", "loop_reads_a_weight": "OpenVINO failed on a batch"}
# Graphs whose quantized form OpenVINO 2026.4 computes wrongly with VNNI, which ``ptq evaluate`` shows.
WRONG = ("mask_by_where", "mask_by_where_and_add")
FLOAT = {"concat": ["y"]}  # A Conv behind a Concat and a Relu: OpenVINO 2026.4 leaves it in float


def what_computes_in_the_plan_is_an_integer_primitive(made: Exported) -> None:
    if made.name in REFUSED:
        return
    kernels = OPEN_VINO.find_kernels(made.result)
    computing = {name for name, rule in made.target.op.items() if rule.kind == "compute"}
    planned = [layer for layer in made.plan.layers if layer.quantized and layer.op in computing]
    found = [layer.name for layer in planned if kernels[layer.name].placement == "float"]
    assert found == FLOAT.get(made.name, [])


def openvino_runs_it_near_the_float_model(made: Exported) -> None:
    inputs = sample(made.model, seed=COMPARED)
    if made.name in REFUSED:
        return
    written = OPEN_VINO.open(serialized(made.model), threads=1).run(inputs)
    is_right = all(
        sqnr_db(finite(reference), finite(other)) > LEAST_DB
        for reference, other in zip(made.wanted, written, strict=True)
    )
    found = OPEN_VINO.open(made.content, threads=1).run(inputs)
    near = all(
        sqnr_db(finite(reference), finite(other)) > LEAST_DB
        for reference, other in zip(made.wanted, found, strict=True)
    )
    wrong = made.name in WRONG or not is_right
    if is_signed_exact():
        assert near is not wrong
    else:  # With AVX2 alone it has other kernels, of which some are right.
        assert near or wrong


ALWAYS: tuple[Callable[[Exported], None], ...] = (its_rules_say_what_its_plan_does,)
RUN = (what_computes_in_the_plan_is_an_integer_primitive, openvino_runs_it_near_the_float_model)
OPENVINO = ALWAYS + (RUN if importlib.util.find_spec("openvino") else ())
