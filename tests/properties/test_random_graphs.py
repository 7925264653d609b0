"""Random models of 1 to 40 operators: each is prepared, planned, quantized and run, and near its float one.

What holds of every model: preparation computes the same, the checker takes the result, ONNX Runtime runs it
as it is written and optimized, every layer that stays float has its reason, and no output is farther from the
float model's than noise in the place of rounding explains (``tests/properties/noise.py`` argues for that)."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import rescale, scale_spaces
from ptq_cli.plan.target.target_file import load_target, target_names
from ptq_cli.runtime.session import Session
from tests.properties.random_checks import check
from tests.properties.random_graphs import random_model
from tests.properties.random_steps import STEPS
from tests.unit.plan.graphs import sample

SLACK = 4.0
"""Of four draws the noise of the worst is taken. In 2,000 models the error was at most 2.3 times that noise,
and a third of it in the median."""
PARTS = 10

# Shrinking runs a model hundreds of times; a seed and a number of operators say enough.
graphs = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@settings(graphs, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 40), target=st.sampled_from(target_names()))
@example(seed=303, count=27, target="openvino")  # A Conv whose filter meets only padding: its bias alone.
def test_a_random_model_is_quantized_and_near_its_float_one(seed: int, count: int, target: str):
    outcome = check(random_model(seed, count, STEPS), load_target(target))
    assert max(outcome.ratios, default=0.0) <= SLACK


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_two_thousand_random_models(part: int):
    @settings(graphs, max_examples=2000 // PARTS)
    @given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 40), target=st.sampled_from(target_names()))
    def one_part(seed: int, count: int, target: str) -> None:
        outcome = check(random_model(seed * PARTS + part, count, STEPS), load_target(target))
        assert max(outcome.ratios, default=0.0) <= SLACK

    one_part()


# Whatever positive factors the channels of a model get, the model computes what it did.


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(seed=st.integers(0, 2**32 - 1), octaves=st.sampled_from([1.0, 6.0]))
def test_any_factors_leave_a_random_model_as_it_was(seed: int, octaves: float) -> None:
    try:
        model = prepare(ir.from_proto(random_model(seed, 20, STEPS)), "model")
    except InvalidOnnxError:
        assume(False)
    trace = trace_scales(model.graph)
    spaces = scale_spaces(trace)
    assume(spaces)
    before = serialize(model)
    random = np.random.default_rng(seed)
    roots = [int(root) for space in spaces for root in space.roots]
    rescale(model.graph, trace, {root: float(2 ** random.uniform(-octaves, octaves)) for root in roots})
    batch = sample(model, seed=1, batch=2)
    # As they are written: ONNX Runtime would merge the operators of one in another order than of the other.
    wanted, found = (
        Session(item, threads=1, optimize=False).run(batch) for item in (before, serialize(model))
    )
    for one, other in zip(wanted, found, strict=True):
        if np.isfinite(one).all():
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-5 * max(np.abs(one).max(), 1e-6))
