"""A calibration that was ended at any moment continues, and ends with the bytes of one that was not."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptq_cli
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.core.progress import Progress

CHECKPOINT = "calibration.partial.safetensors"
FILES = ("calibration.safetensors", "model.float.onnx", "recipe.toml")
SETTINGS: dict[str, Any] = {"data": "calib.npz", "batch_size": 2, "checkpoint_every": 0.0}
WORDS = "calibrate model.onnx --data calib.npz --batch-size 2 --checkpoint-every 0"


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


@pytest.mark.parametrize("samples", [4, 8, 12])
def test_it_continues_after_the_last_checkpoint(
    folder: Path, ptq: Any, whole: dict[str, bytes], samples: int
) -> None:
    begin(samples)
    # The callback ends it before the checkpoint of the batch at hand.
    seen = load_calibration(folder / "run" / CHECKPOINT).provenance
    assert seen.samples == samples - 2
    outcome = ptq(f"{WORDS} --run run")
    assert outcome.status == 0
    said = f"note: continuing an earlier calibration after {samples - 2} samples; --restart starts again\n"
    assert outcome.err.startswith(said)
    assert read(folder / "run") == whole
    assert sorted(path.name for path in (folder / "run").iterdir()) == sorted(FILES)


def test_it_continues_again_and_again(folder: Path, ptq: Any, whole: dict[str, bytes]) -> None:
    for samples in (4, 6, 6, 10):
        begin(samples)
    assert "after 8 samples" in ptq(f"{WORDS} --run run").err
    assert read(folder / "run") == whole


def test_only_the_rest_is_run(folder: Path) -> None:
    begin(8)
    told: list[Progress] = []
    ptq_cli.calibrate("model.onnx", run="run", progress=told.append, **SETTINGS)
    steps = [(step.done, step.total) for step in told if step.stage == "calibrate" and not step.note]
    assert steps == [(6, 12), (8, 12), (10, 12), (12, 12)]


def test_a_finished_checkpoint_needs_no_batch(folder: Path, ptq: Any, whole: dict[str, bytes]) -> None:
    """Killed between its last batch and the writing of its files."""

    def no_disk(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ptq_cli.pipeline.calibration.run_calibrate.write_together", no_disk)
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
        f"{WORDS.replace('calibrate', 'quantize')} --run run --latency"
    )  # as the recipe of WORDS has it
    assert "after 6 samples" in outcome.err
    assert read(folder / "run") == whole
    assert not (folder / "run" / CHECKPOINT).exists()
    begin(8)
    outcome = ptq(f"{WORDS.replace('calibrate', 'quantize')} --run run --restart")
    assert outcome.status == 0 and "continuing" not in outcome.err


def test_an_earlier_result_stays_until_the_new_one_is_whole(folder: Path, whole: dict[str, bytes]) -> None:
    begin(8, "whole", method="max")
    assert read(folder / "whole") == whole


def other_data(folder: Path) -> None:
    shutil.copyfile(folder / "eval.npz", folder / "calib.npz")


def damage(folder: Path) -> None:
    path = folder / "run" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-1])


OTHERS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "another method": (f"{WORDS} --method max", lambda _: None, "'calibration.method' has changed since"),
    "fewer samples": (f"{WORDS} --samples 11", lambda _: None, "'calibration.samples' has changed since"),
    "another batch size": (WORDS.replace("size 2", "size 3"), lambda _: None, "it has batches of 2"),
    "a shard": (f"{WORDS} --shard 1/2", lambda _: None, "it is for shard 1 of 1"),
    "another model": (
        WORDS.replace("model.onnx", "model.pt --arch model.py:build"),
        lambda _: None,
        "'model.arch' has changed since",
    ),
    "other data": (WORDS, other_data, "the calibration data have changed since"),
    "damaged": (WORDS, damage, f"'run/{CHECKPOINT}' is damaged: "),
}


@pytest.mark.parametrize(("words", "change", "reason"), OTHERS.values(), ids=OTHERS.keys())
def test_a_checkpoint_of_another_calibration_is_passed_over(
    folder: Path, ptq: Any, words: str, change: Callable[[Path], object], reason: str
) -> None:
    begin(8)
    change(folder)
    outcome = ptq(f"{words} --run run")
    assert outcome.status == 0
    beginning = f"note: not continuing the earlier calibration in 'run/{CHECKPOINT}', but starting again: "
    assert outcome.err.startswith(beginning + reason)
    assert ptq(f"{words} --run fresh").status == 0
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


def test_a_full_disk_ends_no_calibration(folder: Path, ptq: Any, whole: dict[str, bytes]) -> None:
    write = Path.write_bytes
    calls = 0

    def full_at_times(path: Path, content: bytes) -> int:
        nonlocal calls
        if CHECKPOINT in path.name:
            calls += 1
            if calls in (1, 3):
                write(path, content[:100])
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", full_at_times)
        outcome = ptq(f"{WORDS} --run run")
    assert outcome.status == 0
    first, second = (line for line in outcome.err.splitlines() if line.startswith("note: "))
    reason = f"cannot write 'run/{CHECKPOINT}': no space left on device"
    assert first == f"note: no checkpoint was written, the calibration continues: {reason}"
    assert (
        second
        == f"note: no checkpoint was written; the last one is kept, the calibration continues: {reason}"
    )
    assert read(folder / "run") == whole


@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_seconds_that_are_none(refuse: Any, value: str) -> None:
    words = f"calibrate model.onnx --data calib.npz --checkpoint-every {value}"
    refuse(words, "PTQ-RECIPE-003", "'calibration.checkpoint_every'", "0 or more")


def test_an_uninterrupted_calibration_writes_no_checkpoint_by_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptq_cli.pipeline.calibration.run_calibrate.save_calibration", pytest.fail)
    ptq_cli.calibrate("model.onnx", data="calib.npz", batch_size=1)


def test_images_that_were_counted_are_not_opened_again(folder: Path, ptq: Any) -> None:
    from PIL import Image

    images = folder / "images"
    images.mkdir()
    noise = np.random.default_rng(4).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    for index, pixels in enumerate(noise):
        Image.fromarray(pixels).save(images / f"{index}.bmp")
    words = (
        "calibrate model.onnx --data images --batch-size 1 --recover none"  # others look at samples before
    )
    settings = {"data": "images", "batch_size": 1, "recover": ["none"]}
    assert ptq(f"{words} --run whole").status == 0
    begin(5, **settings)
    for index in (2, 3):  # the first two show what the model's inputs look like
        size = (images / f"{index}.bmp").stat().st_size
        (images / f"{index}.bmp").write_bytes(b"\0" * size)
    outcome = ptq(f"{words} --checkpoint-every 30 --run run")
    assert "after 4 samples" in outcome.err
    calibrations = [(folder / run / FILES[0]).read_bytes() for run in ("run", "whole")]
    assert calibrations[0] == calibrations[1]
