"""Measuring gives every operator a time, of the right node, on any machine; how long it is, no test says."""

from pathlib import Path

import numpy as np
import pytest

from ptq_cli.core.documents import read_document, to_json
from ptq_cli.core.errors import ProfileError
from ptq_cli.latency.measure_profile import integer_twin, measure_profile, operators_digest
from ptq_cli.latency.operator_times import operator_times
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.runtime.engine_registry import find_kernels
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, sample

TARGET = load_target("ort-cpu")
NET = """(float[N,3,32,32] x) => (float[N,4,16,16] y)
    <float[16,3,3,3] u, float[16,16,3,3] v, float[4,16,1,1] w, float low = {0}, float high = {6}> {
    a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, u) h = HardSwish(a)
    b = Conv<pads=[1,1,1,1]>(h, v) r = Clip(b, low, high) s = Add(r, h) y = Conv(s, w) }"""


def test_every_unit_has_a_time():
    model = build(NET)
    [times] = operator_times([model], [sample(model, batch=1)], threads=1, seconds=0.1)
    assert list(times.by_node) == ["a", "h", "b", "r", "s", "y"]
    # A Conv, its activation function and the Add behind them are one kernel, with the name of one of them.
    for unit in ("ah", "brs", "y"):  # The last one makes an output of the graph.
        assert sum(times.by_node[name] for name in unit) > 0
    assert times.total > 0 and times.spread >= 1


def test_the_twin_has_the_kernels_of_the_calibrated_model():
    model = build(NET)
    plan = make_plan(model, TARGET)
    twin, real = integer_twin(model, plan, TARGET), quantized(model, plan)
    found = {name: kernel.placement for name, kernel in find_kernels(twin).items()}
    for name, kernel in find_kernels(real).items():
        assert found[name] == kernel.placement, name


def test_a_profile_is_written_and_read_again(tmp_path: Path):
    model = build(NET)
    batch = sample(model, batch=2)
    profile = measure_profile(
        model, make_plan(model, TARGET), TARGET, [batch], batch=2, threads=1, seconds=0.3
    )
    assert (profile.batch, profile.threads, profile.target) == (2, 1, "ort-cpu")
    assert set(profile.nodes) == {"a", "h", "b", "r", "s", "y"}
    assert profile.nodes["h"].integer > 0  # Its Add and its Mul.
    assert profile.elements["h"] == 2 * 16 * 16 * 16
    assert profile.seam_fixed > 0
    path = tmp_path / "here.json"
    path.write_bytes(to_json(profile).encode())
    assert read_document(MachineProfile, path) == profile


def test_the_digest_is_of_the_operators_and_not_of_their_numbers():
    one, other = build(NET), build(NET, constants={"w": np.ones((4, 16, 1, 1), np.float32)})
    assert operators_digest(one) == operators_digest(other)
    assert operators_digest(one) != operators_digest(build(NET.replace("HardSwish", "Sigmoid")))


@each_case("text", ["", "{", "[]", '{"format": "ptq.profile", "format_version": 99}', '{"format": "x"}'])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str):
    (tmp_path / "p.json").write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match=r"p\.json"):
        read_document(MachineProfile, tmp_path / "p.json")
