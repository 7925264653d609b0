"""Flags beat ``--recipe``, which beats ``./ptq.toml``, which beats the preset; a run remembers."""

import shutil
from pathlib import Path
from typing import Any

import pytest

RECIPE = '[model]\npath = "model.onnx"\n[calibration]\ndata = "calib.npz"\n'


def test_a_run_s_recipe_repeats_the_run(folder: Path, ptq: Any) -> None:
    assert ptq("quantize model.onnx --data calib.npz --method max --samples 7 --run a").status == 0
    assert ptq("quantize --recipe a/recipe.toml --run b").status == 0
    assert (folder / "a/model_int8.onnx").read_bytes() == (folder / "b/model_int8.onnx").read_bytes()


def test_export_needs_no_flag_again_beside_a_recipe(folder: Path, ptq: Any) -> None:
    (folder / "ptq.toml").write_text('[calibration]\nmethod = "max"\n')
    words = "calibrate model.pt --arch model.py:build --data calib.npz --method histogram --run new"
    assert ptq(words).status == 0
    outcome = ptq("export --run new")
    assert outcome.status == 0, outcome
    assert "ranges by percentile" in outcome.out


def test_a_limit_holds_for_its_own_command_where_a_recipe_is_at_hand(folder: Path, ptq: Any) -> None:
    (folder / "ptq.toml").write_text(RECIPE + '[evaluation]\ndata = "eval.npz"\n')
    assert ptq("quantize --min sqnr_db=99").status == 3
    outcome = ptq("evaluate")
    assert outcome.status == 0
    assert "no gate: no limit was set" in outcome.out


def test_the_folder_can_move(folder: Path, ptq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ptq("calibrate model.pt --arch model.py:build --data calib.npz").status == 0
    moved = tmp_path / "somewhere" / "else"
    moved.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    shutil.move(folder, moved)
    monkeypatch.chdir(moved)
    assert ptq("export").status == 0
    assert ptq("evaluate --eval-data eval.npz").status == 0


def test_the_run_directory_alone_is_enough_to_export(folder, ptq, tmp_path, monkeypatch):
    alone = tmp_path / "job"
    shutil.copytree(folder / "ptq-run", alone / "ptq-run")
    shutil.rmtree(folder / "ptq-run")
    monkeypatch.chdir(alone)
    (alone / "ptq-run/model_int8.onnx").unlink()
    assert ptq("export").status == 0
    assert (alone / "ptq-run/model_int8.onnx").exists()


def test_the_statistics_are_used_again_without_running_the_model(folder: Path, ptq: Any) -> None:
    calibration = (folder / "ptq-run/calibration.safetensors").read_bytes()
    models = set()
    for flags in ("--amax max", "--amax percentile --set amax.percentile=99.9", "--set amax.percentile=90"):
        assert ptq(f"export --run ptq-run {flags}").status == 0
        models.add((folder / "ptq-run/model_int8.onnx").read_bytes())
    assert len(models) == 3
    assert (folder / "ptq-run/calibration.safetensors").read_bytes() == calibration
    outcome = ptq("evaluate --json")
    assert '"percentile": 90.0' in outcome.out
