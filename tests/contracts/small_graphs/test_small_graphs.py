"""Every small graph through every target, once: the graph's case holds all that is promised of the two.

A case that fails names each promise that was broken, in a note of its error.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.core.pair_sums import LARGEST_SUM, PairRule, exceeds_pairs
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target, target_names
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.runtime.engine_registry import count_kernels
from tests.contracts.small_graphs.every_target import EVERY_TARGET, ONE_TARGET, OPENVINO
from tests.contracts.small_graphs.exported import Exported, export, run_optimized
from tests.contracts.small_graphs.ort_cpu import ORT_CPU, claimed, float_nodes
from tests.day import fewer
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, quantized, sample, serialized

Promise = Callable[[Exported], None]

TARGETS = target_names()
OWN: dict[str, tuple[Promise, ...]] = {**ONE_TARGET, "ort-cpu": ORT_CPU, "openvino": OPENVINO}


def hold(promises: Iterable[Promise], made: Exported) -> None:
    """Hold every promise, and name all that are broken."""
    broken: list[AssertionError] = []
    for promise in promises:
        try:
            promise(made)
        except AssertionError as error:
            error.add_note(f"broken: {promise.__name__}, of {made.name} for {made.target.name}")
            broken.append(error)
    if broken:
        raise ExceptionGroup(f"{made.name} for {made.target.name}", broken)


# Graphs without anything that a target has an integer kernel for.
NOTHING = {
    "openvino": {
        "concat_constant",
        "conv_transpose",
        "conv_transpose_grouped",
        "matmul_of_activations",
        "matmul_of_activations_plus_bias",
    }
}


# A product is quantized that nobody reads: preparation would have removed it.
UNREAD = ("qnn", "split_of_an_input")


PAIRS = [(target, name) for name in CASES for target in TARGETS if (target, name) != UNREAD]
ORT_CPU_PAIRS = [pair for pair in PAIRS if pair[0] == "ort-cpu"]


@pytest.mark.parametrize(
    ("target", "name"), [*ORT_CPU_PAIRS, *fewer((pair for pair in PAIRS if pair[0] != "ort-cpu"), 5)]
)
def test_it_keeps_every_promise(target: str, name: str) -> None:
    if name in NOTHING.get(target, ()):
        with pytest.raises(NothingToQuantizeError):
            export(name, target)
        return
    hold((*EVERY_TARGET, *OWN[target]), export(name, target))


def test_every_target_has_promises_of_its_own() -> None:
    assert OWN.keys() == set(TARGETS)


def test_every_broken_promise_is_named() -> None:
    def is_float(made: Exported) -> None:
        assert made.plan.weights == ()

    def is_small(made: Exported) -> None:
        assert made.content == b""

    with pytest.raises(ExceptionGroup) as caught:
        hold([is_float, EVERY_TARGET[0], is_small], export("conv", "ort-cpu"))
    assert [note for error in caught.value.exceptions for note in error.__notes__] == [
        "broken: is_float, of conv for ort-cpu",
        "broken: is_small, of conv for ort-cpu",
    ]


def test_a_claim_that_is_not_kept_is_seen() -> None:
    # Without this rule ONNX Runtime makes a float Gemm of the MatMul and the Add.
    target = load_target("ort-cpu")
    careless = replace(target, op={**target.op, "MatMul": replace(target.op["MatMul"], merged_by=[])})
    model = build(CASES["matmul_residual_2d"].graph)
    plan = make_plan(model, careless)
    content = serialized(quantized(model, plan))
    assert claimed(plan, "MatMul") == 1
    kernels = run_optimized(content, sample(model), target)[1]
    assert [node.op_type for node in float_nodes(kernels)] == ["Gemm"]
    assert count_kernels(content).floating["Gemm"] == 1


def test_without_the_limit_two_products_saturate() -> None:
    graph, target = build(CASES["conv"].graph), load_target("ort-cpu")
    free = replace(target, weight=replace(target.weight, pair_sum=0))
    plan = make_plan(graph, free)
    (site,) = plan.weights
    assert site.pairs is None
    rule = PairRule(LARGEST_SUM, ((2, 3, 1),))
    integers = quantized(graph, plan).graph.initializers[f"{site.tensor}.quantized"].const_value
    assert exceeds_pairs(integers.numpy(), rule)


WRONG = {"tensorrt": {"formats", "zero points", "storage", "results"}, "generic": {"formats", "zero points"}}


@pytest.mark.parametrize("other", WRONG)
def test_a_graph_of_another_target_does_not_keep_the_table(other: str) -> None:
    faults = target_faults(export("conv", "ort-cpu").result, load_target(other))
    assert {fault.rule for fault in faults} == WRONG[other]
