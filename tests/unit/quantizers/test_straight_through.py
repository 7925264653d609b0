import ast
import math
from pathlib import Path

import pytest
import torch

from ptq_cli import quantizers
from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.quantizers import straight_through
from ptq_cli.quantizers.step import (
    multi_level_spike_count,
    step_quantize,
    step_quantize_forward,
    stochastic_round,
)
from ptq_cli.quantizers.straight_through import clamp_backward, fresh, pass_where, round_backward
from tests.each_case import each_case

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (straight_through.round, [-2.0, 0.0, 0.0, 0.0, 2.0, 2.0]),
        (straight_through.ceil, [-2.0, 0.0, 0.0, 1.0, 2.0, 3.0]),
        (straight_through.floor, [-3.0, -1.0, 0.0, 0.0, 1.0, 2.0]),
    ],
)
def test_steps(step, expected):
    x = torch.tensor([-2.5, -0.5, 0.0, 0.5, 1.5, 2.5], requires_grad=True)
    y = step(x)
    y.backward(torch.arange(6.0))
    assert y.tolist() == expected
    assert x.grad.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_clamp_passes_at_both_edges_and_not_beyond():
    x = torch.tensor([-1.5, -1.0, 0.2, 2.0, 2.5, INF, NAN], requires_grad=True)
    y = straight_through.clamp(x, -1.0, 2.0)
    y.backward(torch.full((7,), 3.0))
    assert y[:6].tolist() == pytest.approx([-1.0, -1.0, 0.2, 2.0, 2.0, 2.0])
    assert torch.isnan(y[6])
    assert x.grad.tolist() == [0.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0]


def test_backward_functions():
    gradient = torch.tensor([1.0, INF, NAN])
    assert round_backward(gradient) is gradient
    assert clamp_backward(gradient, torch.tensor([0.0, 2.0, 2.0]), -1.0, 1.0).tolist() == [1.0, 0.0, 0.0]
    assert pass_where(torch.tensor([True, False, False]), gradient).tolist() == [1.0, 0.0, 0.0]


DRAWS = 20_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@each_case("precision", [0.1, 0.5, 1.0, 3.0])
@each_case("value", [-1.37, -0.5, 0.0, 0.01, 0.26, 2.999])
def test_expectation_is_the_value(value, precision):
    found = stochastic_round(torch.full((DRAWS,), value), precision, generator=generator())
    steps = found / precision
    assert torch.allclose(steps, torch.round(steps), atol=1e-4)
    assert float((found - value).abs().max()) < precision
    chance = value / precision - math.floor(value / precision)
    deviation = precision * math.sqrt(chance * (1 - chance) / DRAWS)
    assert float(found.double().mean()) == pytest.approx(value, abs=5 * deviation + 1e-6)


def test_multiples_and_what_is_no_number_stay():
    x = torch.tensor([0.0, 1.5, -2.0, float("inf"), -float("inf")])
    assert stochastic_round(x, 0.5, generator=generator()).tolist() == x.tolist()
    assert torch.isnan(stochastic_round(torch.tensor([float("nan")]), generator=generator())).all()


def test_the_generator_decides_and_the_global_one_is_left_alone():
    x = torch.linspace(0, 5, 200)
    before = torch.get_rng_state()
    first, again, other = (stochastic_round(x, generator=generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("precision", [0.0, -1.0, float("nan")])
def test_precision_that_is_none(precision):
    with pytest.raises(QuantizerValueError, match="the precision must be positive"):
        stochastic_round(torch.ones(1), precision)


@pytest.mark.parametrize("step", [0.25, 2.0, -0.25])
def test_every_value_goes_to_the_nearest_multiple(step):
    x = torch.linspace(-5, 5, 1001)
    found = step_quantize(x, step)
    assert torch.equal(found / step, torch.round(found / step))
    assert torch.all((found - x).abs() <= abs(step) / 2)
    assert torch.equal(found, step_quantize_forward(x, step))


def test_count_below_1():
    with pytest.raises(QuantizerValueError, match="a largest count of 0 is too small"):
        multi_level_spike_count(torch.ones(1), 0)


def forwards() -> dict[str, ast.FunctionDef]:
    """Return the forward of each autograd function of the quantizers, by class."""
    folder = Path(quantizers.__file__).parent
    classes = [
        node
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and "torch.autograd.Function" in map(ast.unparse, node.bases)
    ]
    return {
        item.name: part
        for item in classes
        for part in item.body
        if isinstance(part, ast.FunctionDef) and part.name == "forward"
    }


def test_every_forward_returns_a_tensor_that_no_operation_handed_through():
    """PyTorch 2.11 gives one that an operation handed through the gradient 0 in a compiled graph."""
    found = forwards()
    assert {"_StraightThrough", "_Clipped", "_FixedPoint"} <= found.keys()
    for name, forward in found.items():
        returned = [node.value for node in ast.walk(forward) if isinstance(node, ast.Return)]
        assert returned and all(ast.unparse(value).startswith("fresh(") for value in returned), name


def test_in_a_compiled_graph_the_result_is_a_copy():
    def handed_through(x: torch.Tensor) -> torch.Tensor:
        return fresh(x.to(x.dtype))

    x = torch.tensor([1.0])
    assert handed_through(x) is x
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_method"])
        return graph.forward

    torch.compiler.reset()
    torch.compile(handed_through, backend=backend)(x)
    assert graphs[0][-1] == "clone"
