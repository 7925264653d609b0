"""The noise of layers: what each adds alone, and an estimate of it where there are many."""

import itertools

import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpzDataset
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.pipeline.tuning import layer_noise as ranking
from ptq_cli.pipeline.tuning.layer_noise import QUIET, layer_noise
from ptq_cli.pipeline.tuning.layer_ranking import LayerRanking, layers_by_level
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.staged_model import StagedModel
from ptq_cli.recovery.range_effects import loudest
from tests.unit.plan.graphs import build
from tests.unit.qdq.twins import CHAIN, make_twins


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measures the layers of a small network; and the groups of layers that were run, with their samples."""
    target, twins = load_target("ort-cpu"), make_twins(CHAIN)
    integer = {layer.name for layer in make_plan(build(CHAIN, opset=20), target).layers if layer.quantized}
    images = np.random.default_rng(0).normal(size=(24, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=images)
    runs: list[tuple[tuple[str, ...], int]] = []
    original = ranking._Runs._each

    def counted(self, groups, rest):
        runs.extend((layers, self._size) for layers in groups)
        return original(self, groups, rest)

    monkeypatch.setattr(ranking._Runs, "_each", counted)

    def measure(threads: int = 2, progress: ProgressCallback = silent, **many: int) -> dict[str, float]:
        model, data = twins.graphs.float_model, NpzDataset(str(tmp_path / "x.npz"))
        options = {"batch_size": 32, "threads": threads, "progress": progress, **many}
        return layer_noise(twins.graphs, integer, target, data, input_specs(model), **options)

    return measure, runs


def test_more_samples_measure_fewer_layers(measured, monkeypatch):
    measure, runs = measured
    told: list[Progress] = []
    found = measure(progress=told.append)
    # Of 6 layers on 24 samples; each run counts by the stages that it runs again.
    assert sum(size for _, size in runs) == 6 * 8 + 3 * 8 + 1 * 8
    assert (told[0].done, told[-1].done) == (0, told[-1].total)
    assert [told[0].describe(), told[-1].describe()] == ["0 of 10 runs", "10 of 10 runs"]
    works = [after.done - before.done for before, after in itertools.pairwise(told)]
    by_layer = {layers: work for (layers, _), work in zip(runs[:6], works, strict=False)}
    assert by_layer[("first",)] > by_layer[("third",)] > 2 * by_layer[("last",)], "of the stages behind it"
    assert "flat" not in found, "it only moves values"
    assert len(found) == 6
    samples = {name: sum(size for layers, size in runs if layers == (name,)) for name in found}
    assert sorted(samples.values()) == [8, 8, 8, 16, 16, 24]
    assert measure(threads=1) == found
    monkeypatch.setattr(ranking, "FIRST", 24)
    every, last = measure(), next(name for name, size in samples.items() if size == 24)
    assert every[last] == pytest.approx(found[last], rel=1e-9), "it was measured on all samples"


def test_of_many_layers_the_noise_of_groups_is_divided_and_the_loudest_are_measured(measured):
    measure, runs = measured
    alone = measure()
    runs.clear()
    told: list[Progress] = []
    found = measure(progress=told.append, most_alone=4, loud=3)
    assert told[-1].done == told[-1].total
    assert [layers for layers, _ in runs[:2]] == [("first", "second", "third"), ("join", "pool", "last")]
    loud = {name for layers, _ in runs[2:] for name in layers}
    assert len(loud) == 3
    assert max(alone, key=alone.__getitem__) in loud
    assert min(alone, key=alone.__getitem__) not in loud
    # Quiet ones were estimated, and are about as quiet as they prove to be on all samples.
    assert found == {name: pytest.approx(share, rel=3.0) for name, share in alone.items()}
    assert measure(threads=1, most_alone=4, loud=3) == found


def test_what_is_not_finite_is_loud():
    assert loudest({("a",): 1.0, ("b",): float("nan"), ("c",): 2.0}, 2, QUIET) == [("b",), ("c",)]


def test_a_layer_that_makes_nan_alone_is_as_loud_as_the_signal(measured, monkeypatch):
    measure, _ = measured
    changed = StagedModel.changed_outputs

    def broken(self, layers, base, *, quantized):
        found = changed(self, layers, base, quantized=quantized)
        return {name: array * np.nan for name, array in found.items()} if "second" in layers else found

    monkeypatch.setattr(StagedModel, "changed_outputs", broken)
    found = measure()
    assert found["second"] == pytest.approx(1.0)
    assert layers_by_level(found, dict.fromkeys(found, 1.0), (1,), most=5) == (("second",),)


def test_quiet_layers_go_to_float_late_where_loud_ones_hid_them():
    noise = {"loud": 1.0, "quiet": 2.0**-10, "last": 2.0**-20}
    ranking = LayerRanking(noise=noise, cost=dict.fromkeys(noise, 1.0), dynamic=(), weight_only=())
    assert ranking.levels() == (("loud",), ("loud", "quiet"))
