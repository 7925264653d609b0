"""What a chain of nodes costs grows with its length, and not with its square."""

import sys
from pathlib import Path
from types import FrameType

import pytest

from ptq_cli.models.preparing.simplify import _rules, simplify
from ptq_cli.pipeline.run_inspect import run_inspect
from ptq_cli.setup.resolve import Request
from tests.unit.plan.graphs import build, serialized

SHORT = 40
LINKS = {
    "Relu": "t{out} = Relu(t{in})",
    "Add": "t{out} = Add(t{in}, w)",
    "Transpose": "t{out} = Transpose<perm=[1,0]>(t{in})",
    "MatMul": "a{out} = MatMul(t{in}, w) t{out} = Tanh(a{out})",
}


def chain(link: str, length: int) -> str:
    nodes = [link.replace("{in}", str(i)).replace("{out}", str(i + 1)) for i in range(length)]
    return f"(float[4,4] t0) => (float[4,4] y) <float[4,4] w> {{ {' '.join(nodes)} y = Sigmoid(t{length}) }}"


def calls_of_inspect(path: Path) -> int:
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        run_inspect(Request(settings={}, model=path))
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("op", LINKS)
def test_twice_as_many_nodes_take_twice_as_many_calls(op: str, tmp_path: Path):
    counts = []
    for length in (1, SHORT, 2 * SHORT, 4 * SHORT):
        path = tmp_path / f"{length}.onnx"
        path.write_bytes(serialized(build(chain(LINKS[op], length))))
        counts.append(calls_of_inspect(path))
    _, short, double, fourfold = counts
    assert fourfold - double < 2.2 * (double - short)


def test_fused_nodes_do_not_keep_the_names_of_all_rules_that_fused_them():
    (relu, _) = simplify(build(chain(LINKS["Relu"], SHORT))).graph
    assert sum(map(len, relu.metadata_props.values())) < SHORT


def test_each_rule_is_tried_at_the_operator_that_its_pattern_ends_with():
    for op, rules in _rules().items():
        for rule in rules:
            (node,) = rule._target_pattern.output_nodes
            assert node.op.matches(op) and node.domain.matches("")
