"""Pairs that someone placed anywhere: each operator is proven integer, or has a reason to be float."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.operators import OUT_OF_PLACE, prove_operators
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.qdq.write.new_nodes import NewNodes
from ptq_cli.runtime.engine_registry import find_kernels
from tests.each_case import each_case
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build

TARGET = load_target("ort-cpu")
SOME = ("residual_block", "squeeze_and_excite", "mask_read_by_matmul", "gemm_relu_gemm", "concat", "max_pool")
SCALE = 0.03
# ONNX Runtime 1.31 makes an operator that it then refuses to load; verify says so.
REFUSED = "dilations for operator QLinearAveragePool"


def with_random_pairs(model: ir.Model, seed: int) -> ir.Model:
    """Put pairs of uint8 on some activations and of int8 on some constants, whoever reads them."""
    random = np.random.default_rng(seed)
    model = model.clone()
    graph = model.graph
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    for value in [*values, *list(graph.initializers.values())]:
        is_stored = value.const_value is not None
        if value.dtype != ir.DataType.FLOAT or value.is_graph_output() or random.random() > 0.7:
            continue
        if not value.uses() or (value.const_value is not None and value.const_value.size < 2):
            continue
        uses = [(use.node, use.idx) for use in value.uses()]
        zero = np.array(0, np.int8) if is_stored else np.array(random.choice([0, 100]), np.uint8)
        new, name = NewNodes(graph), value.name or ""
        constants = new.constant(f"{name}.s", np.float32(SCALE)), new.constant(f"{name}.z", zero)
        if value.const_value is not None:
            steps = np.clip(np.rint(value.const_value.numpy() / SCALE), -127, 127).astype(np.int8)
            pair = [new.dequantize(new.constant(f"{name}.q", steps), constants, name)]
        else:
            pair = [*new.pair(value, constants, name)]
        producer = value.producer()
        if producer is None:
            graph.insert_before(next(iter(graph)), pair)
        else:
            graph.insert_after(producer, pair)
        for reader, index in uses:
            reader.replace_input_with(index, pair[-1].outputs[0])
    return model


def check(name: str, seed: int) -> list[str]:
    model = with_random_pairs(build(CASES[name].graph), seed)
    model = ir.from_proto(ir.to_proto(model))
    try:
        kernels = find_kernels(model)
    except RuntimeFailedError as error:
        assert REFUSED in error.message
        return []
    proofs = prove_operators(model, TARGET, multiply_accumulates(model), kernels)
    assert {proof.placement for proof in proofs} <= {"integer", "float", "part"}
    for proof in proofs:
        assert (proof.reason == "") == (proof.placement == "integer"), proof
    list(target_faults(model, TARGET))
    return [proof.op for proof in proofs if proof.reason == OUT_OF_PLACE]


@each_case("seed", range(3))
@each_case("name", SOME)
def test_every_operator_is_integer_or_has_a_reason(name: str, seed: int) -> None:
    check(name, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_no_operator_is_float_without_a_rule(seed: int) -> None:
    unexplained = [op for name in CASES for op in check(name, seed)]
    assert unexplained == []
