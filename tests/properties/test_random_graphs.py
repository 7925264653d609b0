"""Random files of 1 to 25 steps, opset 11 to 23: each goes through the whole pipeline for a target.

What holds of every file: it is quantized, or there is nothing to quantize; ``verify`` passes; preparation
computes the same; and by ONNX's own reference no output is farther from the float file's than noise in the
place of rounding explains (``tests/properties/noise.py`` argues for that), as the file is written and as the
target's runtime runs it, each kernel within a step. ``tests/properties/random_checks.py`` checks it, and runs
one seed again. Any factors of channels leave a random model as it was."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import rescale, scale_spaces
from ptq_cli.plan.target.target_file import target_names
from ptq_cli.runtime.session import Session
from tests.day import fewer
from tests.each_case import each_case
from tests.properties.random_checks import BATCHES, check, judge, random_file, random_inputs
from tests.properties.random_graphs import random_model
from tests.properties.random_steps import STEPS
from tests.unit.plan.graphs import sample

SEEDS, PARTS = 500, 20


def assert_nothing_found(seed: int, target: str, folder: Path) -> None:
    folder.mkdir()
    again = f"python -m tests.properties.random_checks {seed} {target}"
    try:
        findings = check(seed, target, folder).findings
    except Exception as error:
        raise AssertionError(again) from error
    assert findings == [], again


@each_case("target", target_names())
def test_random_files_are_quantized_and_near_their_float_ones(target: str, tmp_path: Path):
    for seed in fewer(range(2), 2):
        assert_nothing_found(seed, target, tmp_path / str(seed))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("target", target_names())
def test_five_hundred_random_files(target: str, part: int, tmp_path: Path):
    for seed in range(part, SEEDS, PARTS):
        assert_nothing_found(seed, target, tmp_path / str(seed))


@each_case("seed", fewer((0, 1, 2, 3, 4, 6), 2))
def test_the_judge_notices_a_scale_that_is_a_half_too_large(seed: int, tmp_path: Path):
    folder = tmp_path / str(seed)
    folder.mkdir()
    outcome, run = check(seed, "ort-cpu", folder), folder / "run"
    assert outcome.findings == []
    quantized, proto = onnx.load(run / "model_int8.onnx"), random_file(seed)
    pairs = [node for node in quantized.graph.node if node.op_type == "DequantizeLinear"]
    weights = {node.input[1] for node in pairs if node.input[0].endswith(".quantized")}
    for tensor in quantized.graph.initializer:
        if tensor.name in weights:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(1.5 * array, array.dtype), tensor.name))
    onnx.save(quantized, run / "model_int8.onnx")
    judge(proto, run, random_inputs(proto, seed * BATCHES), "ort-cpu", outcome)
    assert [item for item in outcome.findings if item.startswith("file: output")]


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
