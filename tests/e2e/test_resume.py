"""A calibration that was ended at any moment continues, and ends with the bytes of one that was not."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ptq_cli
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.core.progress import Progress

CHECKPOINT = "calibration.partial.safetensors"
FILES = ("calibration.safetensors", "model.float.onnx", "recipe.toml")
SETTINGS: dict[str, Any] = {"data": "calib.npz", "batch_size": 2, "checkpoint_every": 0.0}
WORDS = "calibrate model.onnx --data calib.npz --set data.batch_size=2 --set runtime.checkpoint_every=0"


def read(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in FILES}


def end_after(samples: int) -> Callable[[Progress], None]:
    """End the process's work as a kill would: at once, after so many samples."""

    def stop(progress: Progress) -> None:
        if progress.stage == "calibrate" and progress.done >= samples:
            raise KeyboardInterrupt

    return stop


def begin(samples: int, run: str = "run", **settings: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        ptq_cli.calibrate("model.onnx", run=run, progress=end_after(samples), **(SETTINGS | settings))


@pytest.fixture
def whole(folder: Path, ptq: Any) -> dict[str, bytes]:
    """The files of a calibration that nothing ended."""
    assert ptq(f"{WORDS} --run whole").status == 0
    assert sorted(path.name for path in (folder / "whole").iterdir()) == sorted(FILES)
    return read(folder / "whole")


def test_it_continues_after_the_last_checkpoint(folder, ptq, whole):
    begin(8)
    # The callback ends it before the checkpoint of the batch at hand.
    assert load_calibration(folder / "run" / CHECKPOINT).provenance.samples == 6
    outcome = ptq(f"{WORDS} --run run")
    assert outcome.status == 0
    said = "note: continuing an earlier calibration after 6 samples; --set run.restart=true starts again\n"
    assert outcome.err.startswith(said)
    assert read(folder / "run") == whole
    assert sorted(path.name for path in (folder / "run").iterdir()) == sorted(FILES)


def test_a_finished_checkpoint_needs_no_batch(folder: Path, ptq: Any, whole: dict[str, bytes]) -> None:
    """Killed between its last batch and the writing of its files."""

    def no_disk(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ptq_cli.pipeline.run_calibrate.write_together", no_disk)
        assert ptq(f"{WORDS} --run run").status == 130
    assert "after 12 samples" in ptq(f"{WORDS} --run run").err
    assert read(folder / "run") == whole


def test_restart_begins_anew(folder: Path, ptq: Any, whole: dict[str, bytes]) -> None:
    begin(8)
    outcome = ptq(f"{WORDS} --run run --restart")
    assert "continuing" not in outcome.err
    assert read(folder / "run") == whole


def test_a_shard_continues_too(folder: Path, ptq: Any, whole: dict[str, bytes]) -> None:
    begin(4, "one", shard="1/2")
    outcome = ptq(f"{WORDS} --shard 1/2 --run one")
    assert "after 2 samples" in outcome.err
    assert ptq(f"{WORDS} --shard 2/2 --run two").status == 0
    assert ptq("merge one two --run run").status == 0
    assert read(folder / "run") == whole


def test_quantize_continues_too(folder: Path, ptq: Any, whole: dict[str, bytes]) -> None:
    begin(8)
    outcome = ptq(
        f"{WORDS.replace('calibrate', 'quantize')} --run run --set evaluation.latency=true"
    )  # as the recipe of WORDS has it
    assert "after 6 samples" in outcome.err
    assert read(folder / "run") == whole
    assert not (folder / "run" / CHECKPOINT).exists()
    begin(8)
    outcome = ptq(f"{WORDS.replace('calibrate', 'quantize')} --run run --set run.restart=true")
    assert outcome.status == 0 and "continuing" not in outcome.err


def test_a_checkpoint_of_another_calibration_is_passed_over(folder: Path, ptq: Any) -> None:
    begin(8)
    outcome = ptq(f"{WORDS} --samples 11 --run run")
    assert outcome.status == 0
    beginning = f"note: not continuing the earlier calibration in 'run/{CHECKPOINT}', but starting again: "
    assert outcome.err.startswith(f"{beginning}'calibration.samples' has changed since")
    assert ptq(f"{WORDS} --samples 11 --run fresh").status == 0
    assert read(folder / "run") == read(folder / "fresh")


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_a_checkpoint_in_place_of_a_calibration_is_refused(folder: Path, refuse: Any, command: str) -> None:
    begin(8)
    shutil.copyfile(folder / "run" / CHECKPOINT, folder / "ptq-run/calibration.safetensors")
    refuse(
        command,
        "PTQ-CALIB-005",
        "is a checkpoint of shard 1 of 1, which is not finished",
        hint="run ptq calibrate for it",
    )
