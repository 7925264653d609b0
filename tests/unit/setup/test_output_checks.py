"""Outputs are checked before the work: writable, and nobody's input."""

import os
from pathlib import Path

import pytest

from ptq_cli.core.errors import OutputFileError, UsageError
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import CalibrationSettings, EvaluationSettings, ModelSettings
from ptq_cli.setup.output_checks import input_files, require_output, require_outputs
from ptq_cli.setup.run_directory import RunDirectory
from tests.each_case import each_case, table

RUN = RunDirectory(Path("run"))
INPUTS = input_files(
    Recipe(
        model=ModelSettings(path="model.onnx", arch="model.py:build"),
        calibration=CalibrationSettings(data="calib.npz"),
        evaluation=EvaluationSettings(data="eval.npz"),
    )
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("model.onnx", "model.py", "calib.npz", "eval.npz"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("output", [None, "out.onnx", "new/folder/out.onnx", "run/model_int8.onnx"])
def test_outputs_that_can_be_written(folder: Path, output: str | None) -> None:
    before = sorted(folder.iterdir())
    require_outputs(RUN, INPUTS, Path(output) if output else None)
    assert sorted(folder.iterdir()) == before


TAKEN = table("""
    model.onnx        | the model that it is made from
    model.py          | the architecture's file
    calib.npz         | the calibration data
    eval.npz          | the evaluation data
    run/recipe.toml   | the run's own recipe.toml
    run/../model.onnx | the model that it is made from
""")


@each_case("output, what", TAKEN)
def test_an_input_is_never_overwritten(output: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"'{output}' would overwrite {what}"):
        require_outputs(RUN, INPUTS, Path(output))


def test_a_link_to_an_input_is_that_input(folder: Path) -> None:
    (folder / "link.onnx").symlink_to("model.onnx")
    with pytest.raises(UsageError, match=r"'link.onnx' would overwrite the model"):
        require_outputs(RUN, INPUTS, Path("link.onnx"))


def test_an_input_in_the_run_directory_is_protected_too() -> None:
    inputs = input_files(Recipe(model=ModelSettings(path="run/model.float.onnx")))
    with pytest.raises(UsageError, match=r"'run/model.float.onnx' would overwrite the model"):
        require_outputs(RUN, inputs)


def test_a_folder_in_the_place_of_an_output(folder: Path) -> None:
    (folder / "run/report.md").mkdir(parents=True)
    with pytest.raises(OutputFileError, match=r"'run/report.md': it is a folder"):
        require_outputs(RUN, INPUTS)


@pytest.mark.parametrize("run", ["model.py", "model.py/below"])
def test_a_file_in_the_place_of_a_folder(run: str) -> None:
    with pytest.raises(OutputFileError, match=r"'model.py' is a file, expected a folder"):
        require_outputs(RunDirectory(Path(run)), {})


def test_a_read_only_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OutputFileError, match=r"the folder '\.' is read-only"):
        require_outputs(RUN, INPUTS)


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(OutputFileError, match="too long"):
        require_outputs(RunDirectory(Path("x" * 300)), {})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("output", ["pipe", "link", os.devnull])
def test_what_is_not_a_regular_file_is_refused_before_the_work(folder: Path, output: str) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("pipe")
    with pytest.raises(OutputFileError, match=f"cannot write '{output}': it is not a regular file"):
        require_outputs(RUN, INPUTS, Path(output))
    with pytest.raises(OutputFileError, match="it is not a regular file"):
        require_output(Path(output), INPUTS)


def test_of_a_link_the_folder_of_its_file_counts(folder: Path) -> None:
    (folder / "link.onnx").symlink_to("calib.npz/out.onnx")
    with pytest.raises(OutputFileError, match=r"'.*calib\.npz' is a file, expected a folder"):
        require_outputs(RUN, INPUTS, Path("link.onnx"))
