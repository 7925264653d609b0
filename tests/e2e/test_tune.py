"""``ptq tune``: from the command line to the best model, its recipe and its ladder; outliers, too."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ptq_cli
from ptq_cli.cli.main import run as run_ptq
from ptq_cli.core.errors import EmptyDataError, LabelError, TimeBudgetError, TuneError, UnreachableBudgetError
from ptq_cli.evaluation.document.ladder import LADDER_INTERRUPTED
from ptq_cli.models.files.stored import serialize
from ptq_cli.recipe.declaration import RUNGS
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.tuning import candidate_models
from ptq_cli.tuning.candidate import NO_MORE_RUNGS, NO_MORE_TIME
from tests.e2e.test_recover import CONVOLUTIONS, correlated
from tests.unit.plan.graphs import build

Tune = Callable[..., Any]
SETTINGS: dict[str, Any] = {"weight_bits": 4, "threads": 1, "batch_size": 64}


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Tune a small network with weights of 4 bits, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(serialize(build(CONVOLUTIONS)).content)
    np.savez(tmp_path / "calib.npz", x=correlated((4, 10, 10), 160))

    def call(run: str = "run", **settings: Any) -> Any:
        return ptq_cli.tune("model.onnx", run=run, **{"data": "calib.npz", **SETTINGS, **settings})

    return call


def names(result: Any) -> list[str]:
    return [step.name for step in result.ladder.steps]


def test_the_default_is_enough_for_a_small_budget(tune, tmp_path):
    result = tune(budget={"sqnr_db": 3.0})
    assert result.ladder.met
    assert names(result) == ["default"]
    assert result.ladder.samples + result.ladder.set_aside == 160
    assert not (tmp_path / "run" / "tune.partial.json").exists()
    written = json.loads((tmp_path / "run" / "tune.json").read_text())
    assert (written["format"], written["met"], written["chosen"]) == ("ptq.tune", True, 0)


def test_rungs_are_climbed_and_the_recipe_makes_the_same_file(tune, tmp_path):
    start = tune(run="start", budget={"sqnr_db": 3.0}).ladder.steps[0].sqnr_db
    result = tune(budget={"sqnr_db": start + 3.0})
    assert result.ladder.met
    assert result.ladder.best.rungs
    assert result.ladder.best.sqnr_db > start + 3.0
    assert set(result.ladder.best.rungs) <= {"auto", *RUNGS}
    ptq_cli.quantize(recipe="run/recipe.toml", run="again")
    assert RunDirectory(tmp_path / "again").quantized_model.read_bytes() == result.output.read_bytes()
    again = tune(run="third", budget={"sqnr_db": start + 3.0})
    assert again.output.read_bytes() == result.output.read_bytes()
    assert again.ladder == result.ladder


WIDE = """
name = "wide"
description = "a target that also computes with activations of 16 bits"
extends = "generic"

[activation]
formats = ["int16"]
mixed = true
"""


def test_a_target_with_16_bits_gets_them_where_they_cost_little(tune, tmp_path):
    (tmp_path / "wide.toml").write_text(WIDE)
    same = {"target": "wide.toml", "recover": ["none"], "weight_bits": 8}
    start = tune(run="start", budget={"sqnr_db": 3.0}, **same).ladder.steps[0].sqnr_db
    result = tune(budget={"sqnr_db": start + 5.0}, **same)
    assert result.ladder.met, [(step.name, step.sqnr_db) for step in result.ladder.steps]
    assert names(result)[1].startswith("goal ")
    assert result.ladder.best.in_16_bits
    assert result.ladder.untried == ""
    types = {
        item.data_type
        for item in onnx.load(result.output).graph.initializer
        if item.name.endswith("zero_point")
    }
    assert onnx.TensorProto.INT16 in types
    ptq_cli.quantize(recipe="run/recipe.toml", run="again")
    assert RunDirectory(tmp_path / "again").quantized_model.read_bytes() == result.output.read_bytes()


def test_a_budget_that_nothing_keeps_leaves_the_best_and_status_3(tune, tmp_path, capsys):
    tune(run="first", budget={"sqnr_db": 3.0})
    command = "tune model.onnx --data calib.npz --set runtime.threads=1 --weight-bits 4 "
    command += "--budget sqnr_db=200 --recover none"
    assert run_ptq([*command.split(), "--json"]) == 3
    values = json.loads(capsys.readouterr().out)
    ladder = values["ladder"]
    assert (ladder["met"], ladder["stopped"]) == (False, NO_MORE_RUNGS)
    assert ladder["advice"][0].startswith("sqnr_db misses its budget")
    best = max(range(len(ladder["steps"])), key=lambda index: ladder["steps"][index]["sqnr_db"])
    assert ladder["chosen"] == best > 0
    onnx.checker.check_model(onnx.load(RunDirectory(tmp_path / "ptq-run").quantized_model))
    assert run_ptq(command.split()) == 3
    assert "BUDGET MISSED" in capsys.readouterr().out


@pytest.mark.nightly
def test_an_interrupt_leaves_the_best_and_the_same_command_continues(tune, tmp_path, monkeypatch):
    made = []
    export = candidate_models.make_export

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        made.append(arguments)
        if len(made) == 2:
            raise KeyboardInterrupt
        return export(*arguments, **keywords)

    monkeypatch.setattr(candidate_models, "make_export", interrupted)
    cut = tune(budget={"sqnr_db": 200.0}, recover=["round"])
    assert cut.interrupted
    assert (cut.ladder.stopped, names(cut), cut.ladder.met) == (LADDER_INTERRUPTED, ["default"], False)
    first = RunDirectory(tmp_path / "run").quantized_model.read_bytes()
    notes = []
    continued = tune(
        budget={"sqnr_db": 200.0}, recover=["round"], progress=lambda step: notes.append(step.note)
    )
    assert "continuing an earlier tuning after 1 candidate; --set run.restart=true starts again" in notes
    assert continued.output.read_bytes() != first
    whole = tune(run="whole", budget={"sqnr_db": 200.0}, recover=["round"])
    assert continued.output.read_bytes() == whole.output.read_bytes()
    assert continued.ladder == whole.ladder


def test_time_that_is_over(tune, tmp_path):
    with pytest.raises(TimeBudgetError) as caught:
        tune(budget={"sqnr_db": 200.0}, time_budget="0.000001")
    assert "was over before the first candidate was measured" in caught.value.message
    assert not RunDirectory(tmp_path / "run").quantized_model.exists()


def test_time_that_is_over_later(tune, monkeypatch):
    export, late = candidate_models.make_export, []

    def slow(*arguments: Any, **keywords: Any) -> Any:
        late.append(1)
        return export(*arguments, **keywords)

    monkeypatch.setattr(candidate_models, "make_export", slow)
    monkeypatch.setattr("ptq_cli.tuning.run_tune.time.monotonic", lambda: float(len(late) > 1))
    result = tune(budget={"sqnr_db": 200.0}, time_budget="0.5")
    # Neither rung changes the float model: so they are not made once more, and not measured.
    assert names(result) == ["default", "equalize", "smooth"]
    assert {(step.kept, step.sqnr_db) for step in result.ladder.steps[1:]} == {
        (False, result.ladder.steps[0].sqnr_db)
    }
    assert (result.ladder.stopped, result.ladder.met) == (NO_MORE_TIME, False)
    assert result.output.is_file()


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({}, TuneError, "no budget was given"),
        ({"budget": {"top1": 0.1}}, LabelError, "metric 'top1' needs labels"),
        (
            {"budget": {"top1_agreement": 0.99}},
            UnreachableBudgetError,
            "held-out samples cannot prove a budget of 1 %",
        ),
        ({"budget": {"sqnr_db": 3.0}, "samples": 30}, TuneError, "and at least 20 are needed"),
        ({"budget": {"sqnr_db": 3.0}, "samples": 1}, EmptyDataError, "too few to hold out a fraction of 0.5"),
    ],
    ids=["no budget", "no labels", "unreachable", "too few", "none left"],
)
def test_what_is_refused_leaves_nothing(tune, tmp_path, settings, error, says):
    with pytest.raises(error) as caught:
        tune(**settings)
    assert says in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_a_rung_that_rewrites_the_float_model_has_its_own_calibration(tune, tmp_path):
    """Channels are multiplied where they are made and divided where they are read: the same function."""
    model = build(CONVOLUTIONS)
    factors = np.where(np.arange(12) % 4, 1.0, 64.0).astype(np.float32)
    for name, scale in (("w1", factors), ("b1", factors), ("w2", 1 / factors)):
        value = model.graph.initializers[name]
        array = value.const_value.numpy()
        value.const_value = ir.tensor(array * scale.reshape(-1, *[1] * (array.ndim - 1)), name=name)
    (tmp_path / "model.onnx").write_bytes(serialize(model).content)
    result = tune(budget={"sqnr_db": 200.0}, recover=["equalize"], weight_bits=8)
    plain, equalized = result.ladder.steps[:2]
    assert (plain.rungs, equalized.name, equalized.rungs) == ((), "equalize", ("equalize",))
    assert equalized.kept
    assert equalized.sqnr_db > plain.sqnr_db + 3.0
    ptq_cli.quantize(recipe="run/recipe.toml", run="again")
    assert RunDirectory(tmp_path / "again").quantized_model.read_bytes() == result.output.read_bytes()
    evaluated = ptq_cli.evaluate(run="run", data="calib.npz")
    assert evaluated.report.ladder == result.ladder


TOKENS = """(float[n, 6, 128] x) => (float[n, 6, 16] y)
    <float[128, 64] w1, float[64] scale, float[64, 16] w2>
{
    [first] a = MatMul (x, w1)
    [normal] b = LayerNormalization (a, scale)
    [second] y = MatMul (b, w2)
}"""


def written(kind: str) -> None:
    """Write a network and samples with a large first token, or a large first channel that hardly counts."""
    random = np.random.default_rng(5)
    found = random.normal(size=(96, 6, 128)).astype("f4")
    model = build(TOKENS)
    if kind == "token":
        found[:, 0] *= 3000.0
    else:
        found[:, :, 0] *= 3000.0
        first = model.graph.initializers["w1"]
        weight = first.const_value.numpy().copy()
        weight[0] /= 10000.0
        first.const_value = ir.tensor(weight, name="w1")
    Path("model.onnx").write_bytes(serialize(model).content)
    np.savez("calib.npz", x=found)


@pytest.mark.parametrize(
    ("kind", "budget", "field", "operator"),
    [("token", 20.0, "dynamic", "MatMulInteger"), ("channel", 4.0, "in_float", "Cast")],
)
def test_a_layer_with_outliers_keeps_its_bytes(kind, budget, field, operator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(kind)
    settings = {"threads": 1, "recover": ["none"], "prefer": "size", "budget": {"sqnr_db": budget}}
    result = ptq_cli.tune("model.onnx", data="calib.npz", run="run", **settings)
    assert result.ladder.met, [(step.name, step.sqnr_db) for step in result.ladder.steps]
    assert result.bytes < 0.4 * result.float_bytes
    assert "first" in getattr(result.ladder.best, field)
    assert operator in {node.op_type for node in onnx.load(result.output).graph.node}
    ptq_cli.quantize(recipe="run/recipe.toml", run="again")
    assert Path("again/model_int8.onnx").read_bytes() == result.output.read_bytes()


def test_weights_alone_in_blocks_get_8_bits_and_stay_integers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(7)
    shapes = {"w1": (200, 64), "w2": (64, 16)}  # The last block of w1 is shorter.
    model = build(TOKENS.replace("128", "200"))
    for name, shape in shapes.items():
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    Path("model.onnx").write_bytes(serialize(model).content)
    np.savez("calib.npz", x=random.standard_normal((96, 6, 200)).astype("f4"))
    settings = {"preset": "w4_block32", "recover": ["none"], "threads": 1, "budget": {"sqnr_db": 24.0}}
    result = ptq_cli.tune("model.onnx", data="calib.npz", run="run", **settings)
    assert result.ladder.met, [(step.name, step.sqnr_db) for step in result.ladder.steps]
    best = result.ladder.best
    assert (best.in_8_bits, best.in_float) == (("second", "first"), ()), "the smaller one comes first"
    assert result.bytes < 0.4 * result.float_bytes
    ptq_cli.quantize(recipe="run/recipe.toml", run="again")
    assert Path("again/model_q4.onnx").read_bytes() == result.output.read_bytes()
