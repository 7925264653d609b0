"""The noise of layers: what each adds alone, on few samples or on many."""

import itertools
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpzDataset
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.staged_model import StagedModel
from ptq_cli.recover.range_effects import loudest
from ptq_cli.tuning.layer_noise import QUIET_SHARE, LayerRanking, layer_noise, layers_by_level
from tests.unit.plan.graphs import build
from tests.unit.qdq.twins import CHAIN, make_twins


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measures the layers of a small network; and the layer of each run, which is of one sample."""
    target, twins = load_target("ort-cpu"), make_twins(CHAIN)
    integer = {layer.name for layer in make_plan(build(CHAIN, opset=20), target).layers if layer.quantized}
    images = np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=images)
    runs: list[str] = []
    original = StagedModel.changed_outputs

    def counted(self, layer, base):
        runs.append(layer)
        return original(self, layer, base)

    monkeypatch.setattr(StagedModel, "changed_outputs", counted)

    def measure(threads: int = 2, progress: ProgressCallback = silent, **options: Any) -> dict[str, float]:
        model, data = twins.graphs.float_model, NpzDataset(str(tmp_path / "x.npz"))
        options = {"threads": threads, "progress": progress, **options}
        return layer_noise(twins.graphs, integer, target, data, input_specs(model), **options)

    return measure, runs


def test_more_samples_measure_fewer_layers(measured):
    measure, runs = measured
    told: list[Progress] = []
    found = measure(threads=1, progress=told.append, runs=6)
    assert "flat" not in found, "it only moves values"
    # All 6 layers on 2 samples, 3 on the next 2, one on the 12 that are left.
    assert len(runs) == 6 * 2 + 3 * 2 + 12
    assert sorted(runs.count(name) for name in found) == [2, 2, 2, 4, 4, 16]
    assert (told[0].done, told[-1].done) == (0, told[-1].total)
    assert [told[0].describe(), told[-1].describe()] == ["0 of 30 runs", "30 of 30 runs"]
    # Each run counts by the stages that it runs again.
    works = [after.done - before.done for before, after in itertools.pairwise(told) if after.done]
    by_layer = dict(zip(runs[:6], works, strict=False))
    assert by_layer["first"] > by_layer["third"] > 2 * by_layer["last"], "of the stages behind it"
    assert measure(threads=2, runs=6) == found
    last = max(found, key=runs.count)
    assert measure(runs=10**9)[last] == pytest.approx(found[last], rel=1e-9), "it was measured on all samples"


def test_a_sample_whose_answer_tips_is_one_voice(measured, monkeypatch):
    """A layer that loses one of sixteen answers is not louder than one that is ten times as loud on all."""
    measure, runs = measured
    changed = StagedModel.changed_outputs

    def tipped(self, layer, base):
        changed(self, layer, base)
        is_first = runs.count(layer) == 1
        share = {"first": 1e-2, "last": 1.0 if is_first else 1e-3}.get(layer, 0.0)
        return {"y": self.floats("y", base["y"]) * (1 + share**0.5)}

    monkeypatch.setattr(StagedModel, "changed_outputs", tipped)
    found = measure(threads=1)
    assert found["second"] == 0.0 < found["last"] < found["first"] < 0.02
    runs.clear()
    mean = measure(threads=1, combine=fmean)
    assert mean["last"] > mean["first"]


def test_who_was_heard_only_on_a_sample_that_is_easy_for_all_is_no_quieter(measured, monkeypatch):
    """One such as a classifier is sure of: hardly anything changes its answer."""
    measure, runs = measured
    changed = StagedModel.changed_outputs

    def easy(self, layer, base):
        changed(self, layer, base)
        share = {"first": 1e-2, "last": 1e-3}.get(layer, 1e-4) * (1e-6 if runs.count(layer) == 1 else 1.0)
        return {"y": self.floats("y", base["y"]) * (1 + share**0.5)}

    monkeypatch.setattr(StagedModel, "changed_outputs", easy)
    found = measure(threads=1, runs=3)
    assert runs.count("second") == 1 < runs.count("first")
    assert found["second"] == pytest.approx(found["first"] / 100, rel=0.5)


def test_what_is_not_finite_is_loud():
    assert loudest({("a",): 1.0, ("b",): float("nan"), ("c",): 2.0}, 2, QUIET_SHARE) == [("b",), ("c",)]


def test_a_layer_that_makes_nan_alone_is_as_loud_as_the_signal(measured, monkeypatch):
    measure, _ = measured
    changed = StagedModel.changed_outputs

    def broken(self, layer, base):
        found = changed(self, layer, base)
        return {name: array * np.nan for name, array in found.items()} if layer == "second" else found

    monkeypatch.setattr(StagedModel, "changed_outputs", broken)
    found = measure()
    assert found["second"] == pytest.approx(1.0, rel=0.1)
    assert layers_by_level(found, dict.fromkeys(found, 1.0), (1,), most=5) == (("second",),)


def test_quiet_layers_go_to_float_late_where_loud_ones_hid_them():
    noise = {"loud": 1.0, "quiet": 2.0**-10, "last": 2.0**-20}
    ranking = LayerRanking(noise=noise, cost=dict.fromkeys(noise, 1.0), dynamic=(), weight_only=())
    assert ranking.levels() == (("loud",), ("loud", "quiet"))
