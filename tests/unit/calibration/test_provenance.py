"""A calibration is refused where anything that it depends on has changed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ptq_cli.calibration.provenance import (
    DEPENDS_ON,
    HASH_PREFIX,
    LOCATIONS,
    READING,
    RECOVERY,
    TARGET_KEY,
    flags_to_store,
    load_run,
    loaded_run,
    opened_bytes,
    settings_of,
    source_bytes,
    source_hashes,
)
from ptq_cli.collectors.calibration_file import Calibration, calibration_bytes, load_calibration
from ptq_cli.core.errors import StaleCalibrationError
from ptq_cli.models.loading.source import ModelKind, SourceFile, detect_kind
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import ModelSettings
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

RequestWith = Callable[..., Request]


def test_a_run_that_fits_is_loaded(finished: RunDirectory) -> None:
    resolved, calibration, float_model, _ = load_run(Request(settings={}), finished)
    recipe = resolved.recipe
    assert recipe.model.path is not None
    assert Path(recipe.model.path).name == "model.onnx"
    assert calibration.provenance.samples == 10
    assert float_model.sha256 == calibration.provenance.model


NOT_THE_MODEL = "is not the model that was calibrated"


def test_a_file_that_is_no_longer_a_graph_has_changed(finished: RunDirectory) -> None:
    finished.float_model.write_bytes(b"damaged")
    with pytest.raises(StaleCalibrationError, match=NOT_THE_MODEL):
        load_run(Request(settings={}), finished)


def test_a_changed_file_is_told_at_the_end_of_the_block(finished: RunDirectory) -> None:
    changed = finished.float_model.read_bytes() + b"\x12\x01x"  # another producer_name
    finished.float_model.write_bytes(changed)
    seen = []
    with (
        pytest.raises(StaleCalibrationError, match=NOT_THE_MODEL),
        loaded_run(Request(settings={}), finished) as (_, _, float_model, _),
    ):
        seen.append(float_model.content)
    assert seen == [changed]


def test_an_error_of_the_block_is_its_own_where_nothing_has_changed(finished: RunDirectory) -> None:
    with pytest.raises(KeyError, match="mine"), loaded_run(Request(settings={}), finished):
        raise KeyError("mine")


def store(run: RunDirectory, **settings: str) -> Calibration:
    calibration = load_calibration(run.calibration)
    provenance = calibration.provenance
    provenance = dataclasses.replace(provenance, settings={**provenance.settings, **settings})
    calibration = dataclasses.replace(calibration, provenance=provenance)
    run.calibration.write_bytes(calibration_bytes(calibration))
    return calibration


def test_each_setting_that_it_depends_on_makes_it_stale(finished: RunDirectory) -> None:
    content = finished.calibration.read_bytes()
    for key in set(DEPENDS_ON) - {TARGET_KEY, *READING, RECOVERY}:
        finished.calibration.write_bytes(content)
        store(finished, **{key: "'../other.bin'"})
        with pytest.raises(StaleCalibrationError) as caught:
            load_run(Request(settings={}), finished)
        was = "'other.bin'" if key in LOCATIONS else "'../other.bin'"
        assert caught.value.message.startswith(f"'{key}' was {was} when it was calibrated, and is ")
        assert caught.value.hint == "run ptq calibrate again, or undo the change"


def test_every_location_it_depends_on_is_shown_as_one() -> None:
    sections = {name: table for name, table in vars(Recipe()).items() if dataclasses.is_dataclass(table)}
    described = {f"{section}.{item.name}" for section, table in sections.items() for item in fields(table)}
    assert set(LOCATIONS) == described & set(DEPENDS_ON)


def fields(table: object) -> list[dataclasses.Field[object]]:
    return [item for item in dataclasses.fields(table) if item.metadata.get("location")]  # type: ignore[arg-type]


FREE = {
    "rename": {"y": "x"},
    "window": 64,
    "tokenizer": "other.json",
    "batch_size": 3,
    "threads": 1,
    "amax": "max",
    "max_drop": {"top1": 0.5},
    "eval_samples": 2,
}


def test_what_it_does_not_depend_on_may_change(finished: RunDirectory) -> None:
    before = load_run(Request(settings={}), finished)
    for name, value in FREE.items():
        changed = load_run(Request(settings={name: value}), finished)
        assert changed.resolved.recipe != before.resolved.recipe, name
        assert changed.calibration == before.calibration, name


def test_the_source_must_be_as_it_was_but_may_be_gone(finished: RunDirectory) -> None:
    source = Path("model.onnx")
    content = source.read_bytes()
    source.write_bytes(content + b"\x72\x00")
    with pytest.raises(StaleCalibrationError, match=r"model.onnx' has changed since"):
        load_run(Request(settings={}), finished)
    source.unlink()
    load_run(Request(settings={}), finished)


def test_only_flags_that_it_depends_on_are_kept(run: RunDirectory, request_with: RequestWith) -> None:
    request = request_with(threads=2, batch_size=3, method="max", min={"cosine": 0.5}, metric=["top1"])
    assert flags_to_store(request, run) == {
        "model": {"path": "../model.onnx"},
        "calibration": {"data": "../calib.npz", "method": "max"},
    }


def test_paths_in_settings_start_at_the_run_directory() -> None:
    recipe = Recipe(model=ModelSettings(path="/a/b/model.pt", arch="/a/model.py:build"))
    settings = settings_of(recipe, RunDirectory(Path("/a/b/run")))
    assert list(settings) == list(DEPENDS_ON)
    assert settings["model.path"] == "'../model.pt'"
    assert settings["model.arch"] == "'../../model.py:build'"


def test_files_are_hashed_by_their_path_from_the_run_directory(folder: Path, run: RunDirectory) -> None:
    proto = onnx.load("model.onnx")
    onnx.save(proto, "big.onnx", save_as_external_data=True, location="big.bin", size_threshold=0)
    hashes = source_hashes(None, SourceFile(folder / "big.onnx", ModelKind.ONNX, ""), run)
    assert list(hashes) == [f"{HASH_PREFIX}../big.onnx", f"{HASH_PREFIX}../big.bin"]


@pytest.mark.parametrize(
    ("kind", "count"), [(ModelKind.CHECKPOINT, 2), (ModelKind.SAFETENSORS, 2), (ModelKind.TORCHSCRIPT, 1)]
)
def test_the_architecture_counts_where_it_is_used(folder, run, kind, count):
    (folder / "model.py").touch()
    arch = f"{folder}/model.py:build"
    assert len(source_hashes(arch, SourceFile(folder / "model.onnx", kind, ""), run)) == count


def with_external_data(path: Path) -> Path:
    weight = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", *[[v] for v in values])
    graph.initializer.append(weight)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_data_count_and_what_is_gone_is_not_guessed(tmp_path: Path) -> None:
    path, run = with_external_data(tmp_path / "model.onnx"), RunDirectory(tmp_path / "run")
    file = SourceFile(path, detect_kind(path), "")
    settings = {**source_hashes(None, file, run), "calibration.method": "'max'"}
    size = path.stat().st_size + 64 * 64 * 4
    assert source_bytes(str(path), settings, run) == opened_bytes(file) == size
    (tmp_path / "weights.bin").unlink()
    assert source_bytes(str(path), settings, run) is None


def test_a_model_of_another_kind_has_no_size_to_compare_with(tmp_path: Path) -> None:
    path, run = tmp_path / "model.pt", RunDirectory(tmp_path / "run")
    path.write_bytes(b"\x80\x02}")
    file = SourceFile(path, detect_kind(path), "")
    settings = source_hashes(None, file, run)
    assert (source_bytes(str(path), settings, run), opened_bytes(file)) == (None, None)
