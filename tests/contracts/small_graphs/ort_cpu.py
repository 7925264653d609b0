"""What ``ort-cpu`` promises besides: its plan, how integers are stored, and which kernels ONNX Runtime runs.

What the plan calls integer, ONNX Runtime computes in integers; the rest as it likes.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.models.graph_reading import every_value
from ptq_cli.models.pair_operators import is_pair_node
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.proof.operators import float_reason
from ptq_cli.runtime.engine_registry import count_kernels, find_kernels
from tests.contracts.small_graphs.exported import Exported, finite

STEPS = 2.5  # Optimized kernels round a sum once where the written graph rounds its parts; a chain adds up
JOINS = {
    "Mul": "QLinearMul",
    "Concat": "QLinearConcat",
    "Sigmoid": "QLinearSigmoid",
    "LeakyRelu": "QLinearLeakyRelu",
    "Where": "QLinearWhere",
    "AveragePool": "QLinearAveragePool",
    "GlobalAveragePool": "QLinearGlobalAveragePool",
}
INTEGER_RESULT = {"QuantizeLinear", "QLinearMatMul", "QLinearAdd", "QLinearConv", *JOINS.values()}
FLOAT_RESULT = {"DequantizeLinear", "MatMulIntegerToFloat"}
SAME_KERNEL = {"FusedConv": "Conv", "FusedGemm": "Gemm", "FusedMatMul": "MatMul", "NhwcMaxPool": "MaxPool"}
MATRIX = ("Gemm", "MatMul")
# ONNX Runtime inserts these itself, on either side of a DequantizeLinear; they are told by their names.
LAYOUT = {"Transpose", "Reshape"}
# ONNX Runtime moves a DequantizeLinear behind a Transpose at the end; no rule asks it to.
MOVED_BY_ITSELF = {("gemm_transpose", "y")}


def each_node_is_integer_or_says_why_not(made: Exported) -> None:
    integer = [layer.name for layer in made.plan.layers if layer.quantized]
    assert sorted(integer) == sorted(made.case.integer.split())
    floats = {layer.name: layer.reason for layer in made.plan.layers if not layer.quantized}
    assert floats.keys() == made.case.floats.keys()
    assert {node: reason for node, reason in floats.items() if made.case.floats[node] not in reason} == {}


def sites_share_parameters_where_values_only_move(made: Exported) -> None:
    sites, wanted = made.plan.activations, made.case.shared
    shared = {site.tensor: site.source for site in sites.values() if site.tensor != site.source}
    assert shared == {tensor: source for tensor, source in wanted.items() if tensor in sites}
    assert set(wanted) <= set(sites)
    assert all(sites[site.source].source == site.source for site in sites.values())


def every_site_is_read_by_an_integer_operator_or_comes_out_of_one(made: Exported) -> None:
    integer = {layer.name for layer in made.plan.layers if layer.quantized}
    values = {value.name: value for value in every_value(made.model.graph)}
    for tensor in made.plan.activations:
        producer = values[tensor].producer()
        readers = {node.name for node, _ in values[tensor].uses()}
        assert readers & integer or (producer is not None and producer.name in integer), tensor


def weights_are_stored_as_bytes(made: Exported) -> None:
    for site in made.plan.weights:
        integers = made.result.graph.initializers[f"{site.tensor}.quantized"].const_value
        assert integers is not None
        assert integers.dtype == ir.DataType.INT8
        assert integers.nbytes == integers.size
        assert np.min(integers.numpy()) >= -127


def biases_have_the_scale_of_the_products(made: Exported) -> None:
    for site in made.plan.biases:
        source = made.plan.activations[site.activation].source
        product = made.constant(f"{source}.scale") * made.constant(f"{site.weight.tensor}.scale")
        named = f"{site.tensor}.scale"
        scales = [made.constant(key) for key in made.result.graph.initializers if key.startswith(named)]
        assert any(np.array_equal(scale, product.astype(np.float32)) for scale in scales)
        assert made.constant(f"{site.tensor}.quantized").dtype == np.int32


def optimizing_changes_a_few_steps_at_most(made: Exported) -> None:
    stored = made.result.graph.initializers
    for output, plain, fast in zip(made.model.graph.outputs, made.written, made.optimized, strict=True):
        largest = float(np.max(np.abs(finite(plain)), initial=0.0))
        site = made.plan.activations.get(output.name or "")
        scale = f"{site.source}.scale" if site else ""
        step = float(made.constant(scale)) if scale in stored else largest / 255
        assert np.max(np.abs(finite(plain) - finite(fast)), initial=0.0) <= STEPS * step + 1e-6


def the_rules_say_what_onnx_runtime_does(made: Exported) -> None:
    kernels = find_kernels(made.result)
    for node in made.result.graph.all_nodes():
        placement = kernels[node.name].placement
        if is_pair_node(node) or placement == "gone" or (made.name, node.name) in MOVED_BY_ITSELF:
            continue
        reason = float_reason(node, made.target)
        assert (reason == "") == (placement == "integer"), f"{node.name}: {reason}"


def no_integer_layer_is_left_in_float(made: Exported) -> None:
    integer = {layer.name for layer in made.plan.layers if layer.quantized}
    assert [node.name for node in float_nodes(made.kernels) if node.name in integer] == []


def no_more_operators_are_float_than_the_plan_says(made: Exported) -> None:
    allowed = Counter(layer.op for layer in made.plan.layers if not layer.quantized)
    found = Counter(SAME_KERNEL.get(node.op_type, node.op_type) for node in float_nodes(made.kernels))
    table = made.target.op.keys() - LAYOUT
    assert {
        op: count for op, count in found.items() if op in table and count > allowed[op] + extra(op, made.plan)
    } == {}


def kernels_are_counted(made: Exported) -> None:
    counts = count_kernels(made.content)
    assert counts.integer["Conv"] == claimed(made.plan, "Conv")
    assert counts.integer["Gemm"] + counts.integer["MatMul"] == claimed(made.plan, *MATRIX)
    nested = sum("graph of its own" in layer.reason for layer in made.plan.layers)
    floating = sum(not layer.quantized for layer in made.plan.layers if layer.op in MATRIX)
    assert counts.floating["Gemm"] + counts.floating["MatMul"] <= floating + nested


def every_join_is_an_integer_kernel(made: Exported) -> None:
    found = Counter(node.op_type for node in every_node(made.kernels))
    assert {op: found[kernel] for op, kernel in JOINS.items()} == {op: claimed(made.plan, op) for op in JOINS}
    biases = sum(
        layer.op == "Add" and layer.reason.startswith("bias of")
        for layer in made.plan.layers
        if layer.quantized
    )
    assert found["QLinearAdd"] == claimed(made.plan, "Add") - biases


ORT_CPU = (
    each_node_is_integer_or_says_why_not,
    sites_share_parameters_where_values_only_move,
    every_site_is_read_by_an_integer_operator_or_comes_out_of_one,
    weights_are_stored_as_bytes,
    biases_have_the_scale_of_the_products,
    optimizing_changes_a_few_steps_at_most,
    the_rules_say_what_onnx_runtime_does,
    no_integer_layer_is_left_in_float,
    no_more_operators_are_float_than_the_plan_says,
    kernels_are_counted,
    every_join_is_an_integer_kernel,
)


def every_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of those nested in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from every_node(attribute.g)


def float_nodes(graph: onnx.GraphProto, around: frozenset[str] = frozenset()) -> list[onnx.NodeProto]:
    """Return the nodes that compute in float: their first input is float, and they are no integer kernel."""
    floats = {info.name for info in graph.input if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    floats |= {item.name for item in graph.initializer if item.data_type == onnx.TensorProto.FLOAT} | around
    found = []
    for node in graph.node:
        for attribute in node.attribute:
            found += float_nodes(attribute.g, frozenset(floats))
        # The ninth input of a QGemm is the scale of its output; without it the output is float.
        if node.op_type in FLOAT_RESULT or (node.op_type == "QGemm" and len(node.input) < 8):
            floats.update(node.output)
        elif node.op_type not in INTEGER_RESULT | {"QGemm"} and any(
            name in floats for name in node.input[:2]
        ):
            floats.update(node.output)
            found.append(node)
        else:
            floats.difference_update(node.output)  # Around it the name may be that of floats.
    return found


def claimed(plan: Plan, *ops: str) -> int:
    """Return how many layers of some types the plan calls integer."""
    return sum(layer.quantized for layer in plan.layers if layer.op in ops)


def extra(op: str, plan: Plan) -> int:
    """Return how many float operators ONNX Runtime makes of others."""
    # It takes a HardSwish apart, and makes a float Gemm of a float MatMul and its Add.
    floats = [layer for layer in plan.layers if layer.op == "HardSwish" and not layer.quantized]
    hard_swish = len(floats) if op == "Mul" else 0
    matmuls = (
        sum(layer.op == "MatMul" and not layer.quantized for layer in plan.layers) if op == "Gemm" else 0
    )
    return hard_swish + matmuls
