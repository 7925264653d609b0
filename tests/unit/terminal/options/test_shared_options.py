"""Options become settings."""

from pathlib import Path

import pytest

from ptq_cli.core.errors import GateError, UsageError
from ptq_cli.recipe.assignments import FLAG_KEYS, OVERRIDE_FLAGS
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.terminal.options.shared_options import settings_from
from ptq_cli.terminal.phrases import next_step, shown_path
from tests.each_case import each_case, table


def test_set_is_laid_over_options_and_may_not_contradict_them() -> None:
    options = {"max_drop": ("top1=1%",), "assignments": ("gate.max_drop.top5=0.1", "image.mean=0.5")}
    assert settings_from(options) == {"max_drop": {"top1": "1%", "top5": 0.1}, "mean": [0.5]}
    same = {"samples": 4, "assignments": ("calibration.samples=4",)}
    assert settings_from(same) == {"samples": 4}
    for options, says in (
        (
            {"samples": 4, "assignments": ("calibration.samples=5",)},
            "--samples and --set calibration.samples",
        ),
        (
            {"max_drop": ("top1=1%",), "assignments": ("gate.max_drop.top1=2%",)},
            "--max-drop and --set gate.max_drop.top1",
        ),
    ):
        with pytest.raises(UsageError, match=says):
            settings_from(options)


def test_options_become_settings_that_the_recipe_knows() -> None:
    given = {
        "metric": ("top1", "top5"),
        "max_drop": ("top1=0.01",),
        "minimum": ("sqnr_db=25",),
        "exclude": ("head*",),
        "samples": 0,
    }
    settings = settings_from(given)
    assert settings == {
        "metric": ["top1", "top5"],
        "max_drop": {"top1": 0.01},
        "min": {"sqnr_db": 25.0},
        "exclude": ["head*"],
        "samples": 0,
    }
    assert set(settings) <= {*FLAG_KEYS, *OVERRIDE_FLAGS}


def test_a_limit_that_cannot_be_read() -> None:
    with pytest.raises(GateError, match="METRIC=NUMBER"):
        settings_from({"minimum": ("sqnr_db",)})


@each_case(
    "run, model, text",
    table("""
    ptq-run | w2.onnx | next: ptq evaluate w2.onnx
    a run | a model.onnx | next: ptq evaluate 'a model.onnx' --run 'a run'
    ptq-run | -w2.onnx | next: ptq evaluate ./-w2.onnx
    ptq-run | ./ptq-run/../ptq-run/model_int8.onnx | next: ptq evaluate
    other | ptq-run/model_int8.onnx | next: ptq evaluate ptq-run/model_int8.onnx --run other
"""),
)
def test_the_next_step_names_a_model_elsewhere(run: str, model: str, text: str) -> None:
    assert next_step("ptq evaluate", RunDirectory(Path(run)), Path(model)) == text


def test_a_path_below_the_current_folder_is_shown_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "run" / "a.onnx") == "run/a.onnx"
    assert shown_path(Path("run/a.onnx")) == "run/a.onnx"
    assert shown_path(tmp_path.parent / "a.onnx") == str(tmp_path.parent / "a.onnx")
