"""The rung ``ranges``: the range of each activation is chosen by what it costs the outputs."""

import itertools
import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ptq_cli
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import UINT8
from ptq_cli.models.files.stored import serialize
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.qdq.staged_model import StagedModel
from ptq_cli.qdq.write.weight_quantizer import ScaledQuantizer
from ptq_cli.recover.range_effects import Trials, range_costs
from ptq_cli.shown.export_lines import ranges_line
from tests.e2e.test_recover import CONVOLUTIONS, SEQUENCES, correlated
from tests.placements import PLAIN_WEIGHTS
from tests.unit.plan.graphs import build


@pytest.fixture
def quantize(tmp_path, monkeypatch):
    """Quantize a small network in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(run="run", text=CONVOLUTIONS, shape=(4, 10, 10), **settings):
        (tmp_path / "model.onnx").write_bytes(serialize(build(text)).content)
        np.savez(tmp_path / "calib.npz", x=correlated(shape, 80))
        return ptq_cli.quantize("model.onnx", data="calib.npz", run=run, threads=1, **settings).export

    return call


def metadata(result, key):
    props = {item.key: item.value for item in onnx.load(result.output).metadata_props}
    return json.loads(props[key])


@pytest.mark.parametrize(
    ("text", "shape"), [(CONVOLUTIONS, (4, 10, 10)), (SEQUENCES, (6, 16))], ids=["convolutions", "sequences"]
)
def test_ranges_that_clip_too_much_are_widened(quantize, text, shape):
    # Of ranges alone: a better rounding of weights leaves less noise for them to stay below.
    plain = str(PLAIN_WEIGHTS)
    result = quantize(text=text, shape=shape, percentile=90.0, recover=["ranges"], target=plain)
    ranges = result.ranges
    assert ranges.kept
    assert ranges.after > ranges.before + 10
    assert result.recovery is None
    assert (ranges.samples, ranges.decided_by) == (16, 30)
    found = metadata(result, MetadataKey.RANGES)
    assert (found["kept"], found["methods"]) == (True, dict(ranges.methods))
    whole = quantize("max", text=text, shape=shape, amax="max", recover=["ranges"], target=plain).ranges
    assert ranges.after >= whole.before  # That method was among those tried.


@pytest.mark.nightly
def test_rounding_follows_the_chosen_ranges(quantize):
    both = quantize(percentile=90.0, weight_bits=4, recover=["ranges", "round"])
    assert both.ranges.kept
    assert metadata(both, MetadataKey.RECOVERY)[0]["sqnr_db"][0] == pytest.approx(both.ranges.after, abs=0.1)
    again = quantize("again", percentile=90.0, weight_bits=4, recover=["round", "ranges"])
    assert again.output.read_bytes() == both.output.read_bytes()


def test_few_bits_get_mse(quantize):
    ranges = quantize(activation_bits=4, recover=["ranges"]).ranges
    assert ranges.kept
    assert set(ranges.methods.values()) == {"mse"}
    assert not quantize("mse", activation_bits=4, amax="mse", recover=["ranges"]).ranges.methods


def test_of_many_tensors_those_with_the_most_unlike_candidates_are_measured(quantize, monkeypatch):
    monkeypatch.setattr("ptq_cli.recover.range_choice._MOST_TENSORS", 1)
    ranges = quantize(percentile=90.0, recover=["ranges"]).ranges
    assert ranges.samples == 4
    assert ranges.kept
    assert len(ranges.methods) > 1, "one method for all is better than another one for a single tensor"
    assert len(ranges.methods) <= ranges.tensors, "tensors that were too many to measure had a choice, too"


def test_trials_of_ranges_decide_each_weight_once(quantize, monkeypatch):
    stored, store = [], ScaledQuantizer.store
    monkeypatch.setattr(
        ScaledQuantizer,
        "store",
        lambda self, weight, site, grid: stored.append(site.tensor) or store(self, weight, site, grid),
    )
    assert quantize(percentile=90.0, recover=["ranges"]).ranges.kept
    assert stored
    assert len(stored) == len(set(stored))


def test_a_gain_that_may_be_chance_is_not_kept(quantize, monkeypatch):
    monkeypatch.setattr("ptq_cli.recover.range_choice.LITTLE", 100.0)
    plain, ranges = quantize(percentile=90.0), quantize("again", percentile=90.0, recover=["ranges"])
    assert not ranges.ranges.kept
    assert ranges.ranges.after > ranges.ranges.before
    assert "it gained less than 0.1 dB, so it was not kept" in ranges_line(ranges.ranges)
    weights = [onnx.load(item.output).graph for item in (plain, ranges)]
    assert weights[0].SerializeToString() == weights[1].SerializeToString()


@pytest.mark.nightly
def test_nothing_is_changed_where_nothing_is_better(quantize):
    plain = quantize(method="max")
    result = quantize("again", method="max", recover=["ranges"])  # Without histograms there is one method.
    assert not result.ranges.kept
    assert result.ranges.methods == {}
    weights = [onnx.load(item.output).graph for item in (plain, result)]
    assert weights[0].SerializeToString() == weights[1].SerializeToString()


SWISH = """(float[N,4,10,10] x) => (float[] y) <float[16,4,3,3] w, float[16] b, float[8,16,3,3] v> {
  [first] a = Conv<pads=[1,1,1,1]>(x, w, b)
  [swish] s = HardSwish(a)
  [last] y = Conv(s, v)
}"""


def test_a_range_ends_where_a_hard_swish_is_zero(quantize, monkeypatch):
    # As many values far below 0 as above: half of the range says nothing. Weights of 7 bits saturate nowhere.
    plain = str(PLAIN_WEIGHTS)
    result = quantize(text=SWISH, recover=["ranges"], target=plain, weight_bits=7, prefer="size")
    found = metadata(result, MetadataKey.RANGES)
    assert result.ranges.kept
    low, high = found["within"]["a"]
    assert -3.0 <= low < -2.0
    assert high is None
    assert result.ranges.changed >= 1


@pytest.fixture
def costs(quantize, monkeypatch):
    """Measures what two ranges of each tensor cost on three pieces, and counts the runs."""
    quantize()
    model = ir.load("run/model.float.onnx")
    plan = make_plan(model, load_target("ort-cpu"))
    wide, narrow = (
        QuantParameters(np.float32(scale), np.asarray(128, np.int64), UINT8) for scale in (0.1, 0.001)
    )
    pieces = [{"x": correlated((4, 10, 10), 4)}] * 3
    runs, run = [], StagedModel.on_grids
    monkeypatch.setattr(
        StagedModel, "on_grids", lambda self, grids, base: runs.append(grids) or run(self, grids, base)
    )

    def measure(**options):
        runs.clear()
        candidates = {source: [wide, narrow] for source in plan.sources}
        return range_costs(model, plan, candidates, pieces, Trials(**options))

    return measure, runs


def test_what_was_run_for_another_plan_is_not_run_again(costs):
    measure, runs = costs
    known = {}
    first = measure(known=known)
    assert len(known) == len(runs)
    again = measure(known=known)
    assert not runs
    assert all(np.array_equal(first[name], again[name]) for name in first)
    with pytest.raises(TimeoutError):
        measure(done=lambda *counts: (_ for _ in ()).throw(TimeoutError))
    assert len(runs) < len(known), "what has not begun is not begun"


def test_runs_that_prove_not_to_be_needed_are_not_told_as_done(costs):
    measure, runs = costs
    told: list[tuple[int, int]] = []
    measure(done=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == [*range(1, len(runs) + 1), len(runs)]
    assert told[-1] == (len(runs), len(runs))
    assert all(later <= before for (_, before), (_, later) in itertools.pairwise(told)), (
        "the plan only shrinks"
    )
