"""A placement by times that a test writes itself."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.latency.fastest_placement import fastest_placement
from ptq_cli.latency.machine_profile import MachineProfile, NodeTimes
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.each_case import each_case
from tests.properties.random_graphs import random_model
from tests.properties.random_steps import STEPS
from tests.unit.plan.graphs import build

TARGET = load_target("ort-cpu")
CHAIN = """(float[N,4,8,8] x) => (float[N,4,8,8] y)
    <float[4,4,1,1] u, float[4,4,1,1] v, float[4,4,1,1] w, float[4,4,1,1] z> {
    a = Conv(x, u) b = Conv(a, v) c = Conv(b, w) s = Sin(c) y = Conv(s, z) }"""


def profile(times: dict[str, tuple[float, float]], seam: float = 1.0) -> MachineProfile:
    return MachineProfile(
        model="",
        target="ort-cpu",
        runtime="",
        machine="",
        batch=1,
        threads=1,
        floating=sum(floating for floating, _ in times.values()),
        integer=sum(integer for _, integer in times.values()) + 4 * seam,
        spread=1.0,
        seam_fixed=seam,
        seam_element=0.0,
        nodes={name: NodeTimes(*pair) for name, pair in times.items()},
        elements={},
    )


def placed(times, seam=1.0):
    model = build(CHAIN)
    found = fastest_placement(model, make_plan(model, TARGET), TARGET, profile(times, seam))
    integer = [layer.name for layer in found.plan.layers if layer.quantized]
    return integer, dict(found.in_float), found.expected


def test_each_side_of_a_float_operator_is_decided_alone():
    integer, reasons, expected = placed(
        {"a": (90, 30), "b": (90, 30), "c": (90, 30), "s": (5, 5), "y": (20, 60)}
    )
    assert integer == ["a", "b", "c"]
    assert reasons == {"y": "faster in float here: 20 µs of 60 µs"}
    # The input is quantized, and what the Sin reads is dequantized.
    assert expected == 90 + 2 + 5 + 20


def test_one_that_is_slower_alone_goes_with_its_neighbors():
    integer, reasons, _ = placed(
        {"a": (20, 60), "b": (12, 10), "c": (20, 60), "s": (5, 5), "y": (90, 10)}, seam=8
    )
    assert integer == ["y"]
    assert reasons["b"].startswith("faster in float here together with its neighbors")


@pytest.mark.parametrize(("gain", "integer"), [(10, []), (200, ["a", "b", "c"])])
def test_a_layer_that_would_keep_the_next_one_in_float_takes_it_along_or_stays(gain: int, integer: list[str]):
    # ONNX Runtime makes a float Conv between two integer ones an integer one; so b alone cannot be float.
    found, _, expected = placed(
        {"a": (100, 20), "b": (10, 40), "c": (20 + gain, 20), "s": (5, 5), "y": (9, 90)}, seam=1
    )
    assert found == (integer or ["a"])
    assert expected == pytest.approx(20 + (10 + 20 + gain if not integer else 60) + 5 + 9 + 2)


def test_no_mix_is_taken_for_a_gain_within_the_error():
    times = {"a": (100, 99.9), "b": (100, 99.9), "c": (100, 99.9), "s": (5, 5), "y": (100, 100.05)}
    integer, reasons, expected = placed(times, seam=0.0)
    assert (integer, reasons, expected) == (["a", "b", "c", "y"], {}, profile(times, 0.0).integer)


def test_everything_stays_in_float_where_that_is_fastest():
    times = dict.fromkeys("abcsy", (10.0, 20.0))
    integer, reasons, expected = placed(times)
    assert integer == [] and set(reasons) == {"a", "b", "c", "y"} and expected == 50


def test_what_the_user_keeps_in_float_stays_there():
    model = build(CHAIN)
    plan = make_plan(model, TARGET, excluded={"y": "excluded"})
    found = fastest_placement(model, plan, TARGET, profile(dict.fromkeys("abcsy", (50, 10))))
    assert [layer.name for layer in found.plan.layers if layer.quantized] == ["a", "b", "c"]
    assert found.in_float == {}


def test_a_profile_can_be_of_a_machine_with_other_seams():
    times = {"a": (30, 20), "b": (30, 20), "c": (30, 20), "s": (5, 5), "y": (30, 20)}
    model = build(CHAIN)
    plan = make_plan(model, TARGET)
    cheap, dear = profile(times), replace(profile(times), seam_fixed=100.0, integer=500.0)
    assert not fastest_placement(model, plan, TARGET, cheap).in_float
    assert len(fastest_placement(model, plan, TARGET, dear).in_float) == 4


@each_case("seed", range(20))
def test_no_placement_needs_a_tensor_that_was_not_measured(seed: int):
    model = prepare(ir.from_proto(random_model(seed, 25, STEPS)), "random.onnx")
    try:
        plan = make_plan(model, TARGET)
    except NothingToQuantizeError:
        return
    random = np.random.default_rng(seed)
    times = {node.name or "": tuple(random.integers(1, 50, 2)) for node in model.graph}
    found = fastest_placement(model, plan, TARGET, profile(times, seam=3.0))
    assert set(found.plan.measured) <= set(plan.measured)
    assert found.expected <= min(
        sum(time[0] for time in times.values()), sum(time[1] for time in times.values()) + 12
    )
