"""The noise of layers: what each adds alone, in groups first where there are many."""

import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpzDataset
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.pipeline.tuning import layer_ranking as ranking
from ptq_cli.pipeline.tuning.layer_ranking import QUIET, LayerRanking, layer_noise, layers_by_level
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.staged_model import StagedModel
from ptq_cli.recovery.range_effects import loudest
from tests.unit.plan.graphs import build
from tests.unit.qdq.twins import CHAIN, make_twins


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measures the layers of a small network; and the groups of layers that were run, with their samples."""
    target = load_target("ort-cpu")
    twins, plan = make_twins(CHAIN), make_plan(build(CHAIN, opset=20), target)
    images = np.random.default_rng(0).normal(size=(24, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=images)
    runs: list[tuple[tuple[str, ...], int]] = []
    original = ranking._measure

    def counted(staged, outputs, inputs, groups, found, pool, tell):
        runs.extend((layers, len(inputs["x"])) for layers in groups)
        original(staged, outputs, inputs, groups, found, pool, tell)

    monkeypatch.setattr(ranking, "_measure", counted)

    def measure(threads: int = 2, progress: ProgressCallback = silent) -> dict[str, float]:
        model, data = twins.graphs.float_model, NpzDataset(str(tmp_path / "x.npz"))
        options = {"batch_size": 32, "threads": threads, "progress": progress}
        return layer_noise(twins.graphs, plan, target, data, input_specs(model), **options)

    return measure, runs


def test_more_samples_measure_fewer_layers(measured, monkeypatch):
    measure, runs = measured
    told: list[Progress] = []
    found = measure(progress=told.append)
    # Of 6 layers on 24 samples; one run at a time until none is left, and never more than are planned.
    assert (told[0].done, told[0].total, told[-1].done) == (0, 6 * 8 + 3 * 8 + 8, told[-1].total)
    assert told[-1].total == sum(size for _, size in runs) <= 80
    assert "flat" not in found, "it only moves values"
    assert len(found) == 6
    samples = {name: sum(size for layers, size in runs if layers == (name,)) for name in found}
    assert sorted(samples.values()) == [8, 8, 8, 16, 16, 24]
    assert measure(threads=1) == found
    monkeypatch.setattr(ranking, "FIRST", 24)
    every, last = measure(), next(name for name, size in samples.items() if size == 24)
    assert every[last] == pytest.approx(found[last], rel=1e-9), "it was measured on all samples"


def test_many_layers_are_measured_in_groups_first(measured, monkeypatch):
    measure, runs = measured
    alone = measure()
    runs.clear()
    monkeypatch.setattr(ranking, "MOST_ALONE", 3)
    monkeypatch.setattr(ranking, "LOUD_GROUPS", 1)
    told: list[Progress] = []
    found = measure(progress=told.append)
    assert told[-1].done == told[-1].total == sum(size for _, size in runs) < 6 * 24
    assert [len(layers) for layers, _ in runs[:3]] == [2, 2, 2]
    assert set(found) == set(alone)
    loud = {name for layers, _ in runs[3:] for name in layers}
    assert len(loud) <= 2, "those of one group"
    quiet = [found[name] for name in ("third", "join") if name not in loud]
    assert len(set(quiet)) <= 1, "the layers of a group that was not split count as alike"


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
