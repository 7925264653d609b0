"""How the values of flags are read."""

from pathlib import Path

import pytest

from ptq_cli.core.errors import GateError, UsageError
from ptq_cli.recipe.flags import FLAG_KEYS
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.terminal.options.option_values import parse_shapes
from ptq_cli.terminal.options.shared_options import settings_from
from ptq_cli.terminal.phrases import next_step, shown_path
from tests.each_case import each_case, table

SHAPES = {
    "one": (("x=1,3,8,8",), {"x": [1, 3, 8, 8]}),
    "two": (("ids=1,8", "mask=1,8"), {"ids": [1, 8], "mask": [1, 8]}),
    "a name with an equals sign": (("a=b=2",), {"a=b": [2]}),
}


@pytest.mark.parametrize(("texts", "shapes"), SHAPES.values(), ids=SHAPES.keys())
def test_shapes(texts: tuple[str, ...], shapes: dict[str, list[int]]) -> None:
    assert parse_shapes(texts) == shapes


@each_case("text", ["x", "=1,2", "x=", "x=1,a", "1,2", ""])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form NAME=N,N,…") as caught:
        parse_shapes((text,))
    assert "x=1,3,224,224" in caught.value.hint


def test_set_is_laid_over_options_and_may_not_contradict_them() -> None:
    options = {"rename": ("a=x",), "batch_size": 8, "assignments": ("data.rename.b=y", "image.mean=0.5")}
    assert settings_from(options) == {"rename": {"a": "x", "b": "y"}, "batch_size": 8, "mean": [0.5]}
    same = {"samples": 4, "assignments": ("calibration.samples=4",)}
    assert settings_from(same) == {"samples": 4}
    for options, says in (
        (
            {"samples": 4, "assignments": ("calibration.samples=5",)},
            "--samples and --set calibration.samples",
        ),
        ({"rename": ("a=x",), "assignments": ("data.rename.a=y",)}, "--rename and --set data.rename.a"),
        ({"batch_size": 4, "assignments": ("data.batch_size=5",)}, "--set data.batch_size"),
    ):
        with pytest.raises(UsageError, match=says):
            settings_from(options)


def test_options_become_settings_that_the_recipe_knows() -> None:
    given = {
        "metric": ("top1", "top5"),
        "max_drop": ("top1=0.01",),
        "minimum": ("sqnr_db=25",),
        "input_shape": ("x=1,3",),
        "trust_pickle": True,
        "samples": 0,
    }
    settings = settings_from(given)
    assert settings == {
        "metric": ["top1", "top5"],
        "max_drop": {"top1": 0.01},
        "min": {"sqnr_db": 25.0},
        "input_shape": {"x": [1, 3]},
        "trust_pickle": True,
        "samples": 0,
    }
    assert set(settings) <= set(FLAG_KEYS)


def test_a_limit_that_cannot_be_read() -> None:
    with pytest.raises(GateError, match="METRIC=NUMBER"):
        settings_from({"minimum": ("sqnr_db",)})


@each_case(
    "run, model, text",
    table("""
    ptq-run | w2.onnx | next: ptq evaluate w2.onnx
    a run | a model.onnx | next: ptq evaluate 'a model.onnx' --run 'a run'
    ptq-run | -w2.onnx | next: ptq evaluate ./-w2.onnx
    ptq-run | ./ptq-run/../ptq-run/model.int8.onnx | next: ptq evaluate
    other | ptq-run/model.int8.onnx | next: ptq evaluate ptq-run/model.int8.onnx --run other
"""),
)
def test_the_next_step_names_a_model_elsewhere(run: str, model: str, text: str) -> None:
    assert next_step("ptq evaluate", RunDirectory(Path(run)), Path(model)) == text


def test_a_path_below_the_current_folder_is_shown_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "run" / "a.onnx") == "run/a.onnx"
    assert shown_path(Path("run/a.onnx")) == "run/a.onnx"
    assert shown_path(tmp_path.parent / "a.onnx") == str(tmp_path.parent / "a.onnx")
