"""Checkpoints: when they are written, what they hold, and what happens where one fails or does not fit."""

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptq_cli.calibration.measure import CheckpointWriter, advance, resume
from ptq_cli.collectors.calibration_file import (
    Calibration,
    Provenance,
    Share,
    load_calibration,
    save_calibration,
)
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.setup.resumable import COST_LIMIT, Checkpoints, discard_checkpoint

BEGUN = Provenance(
    model="a" * 64,
    source="b" * 64,
    data="c" * 64,
    settings={"calibration.method": "'histogram'"},
    flags={},
    method="histogram",
    samples=8,
    share=Share(3, {2: 2}, 4, finished=False),
)


class Clock:
    """Seconds that pass when the test says so, and while statistics are taken."""

    def __init__(self, cost=0.0):
        self.now = 100.0
        self.cost = cost

    def __call__(self):
        return self.now

    def snapshot(self):
        self.now += self.cost
        collector = HistogramCollector()
        collector.update(np.array([1.0, self.now], np.float32))
        return {"x": collector.statistics()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "calibration.partial.safetensors"


def written_after(path, every, seconds_a_batch, batches, cost=0.0):
    """After which batches a checkpoint is written."""
    clock, told, found = Clock(cost), [], []
    writer = CheckpointWriter(Checkpoints(path, "calibration", every, told.append, clock), BEGUN)
    for batch in range(1, batches + 1):
        clock.now += seconds_a_batch
        if writer.is_due():
            writer.write(batch, 4 * batch, clock.snapshot)
        if path.exists():
            found.append(batch)
            path.unlink()
    assert told == []
    return found


def test_one_is_written_every_so_many_seconds(path):
    assert written_after(path, every=30, seconds_a_batch=8, batches=12) == [4, 8, 12]


def test_zero_seconds_write_one_after_each_batch(path):
    assert written_after(path, every=0, seconds_a_batch=1e-9, batches=3, cost=50) == [1, 2, 3]


def test_slow_ones_are_farther_apart(path):
    found = written_after(path, every=1, seconds_a_batch=1, batches=1000, cost=1)
    assert found[0] == 1
    # Each takes a second; so after any of them but the first, at most one second in a hundred was spent so.
    seconds = [batch + number for number, batch in enumerate(found, start=1)]
    assert all(number / second <= COST_LIMIT for number, second in enumerate(seconds[1:], start=2))
    assert len(found) == 10


def test_it_holds_what_was_seen_so_far(path):
    clock = Clock()
    CheckpointWriter(Checkpoints(path, "calibration", 0, print, clock), BEGUN).write(3, 11, clock.snapshot)
    found = load_calibration(path)
    assert found.provenance == replace(BEGUN, samples=19, share=Share(3, {2: 5}, 4, finished=False))
    assert found.statistics == clock.snapshot()
    assert [item.name for item in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_disk_keeps_the_last_one(path, monkeypatch, number):
    clock, told = Clock(), []
    write = CheckpointWriter(Checkpoints(path, "calibration", 0, told.append, clock), BEGUN).write
    write(1, 4, clock.snapshot)
    good = path.read_bytes()

    def full(self, content):
        with self.open("wb") as stream:
            stream.write(content[: len(content) // 2])
        raise OSError(number, "No space left on device", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        write(2, 8, clock.snapshot)
    assert path.read_bytes() == good
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    assert told == [
        "no checkpoint was written; the last one is kept, the calibration continues: "
        f"cannot write '{path}': no space left on device"
    ]
    write(3, 12, clock.snapshot)
    assert load_calibration(path).provenance.samples == 20


def test_a_full_disk_from_the_start_is_told_without_a_last_one(path, monkeypatch):
    def full(self, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    clock, told = Clock(), []
    monkeypatch.setattr(Path, "write_bytes", full)
    CheckpointWriter(Checkpoints(path, "calibration", 0, told.append, clock), BEGUN).write(
        1, 4, clock.snapshot
    )
    assert told[0].startswith("no checkpoint was written, the calibration continues: ")


def test_advance():
    assert advance(BEGUN, 2, 7).share == Share(3, {2: 4}, 4, finished=False)
    done = advance(BEGUN, 2, 7, finished=True)
    assert (done.samples, done.share) == (15, Share(3, {2: 4}, 4))
    whole = replace(BEGUN, share=Share(1, {1: 0}, 4, finished=False))
    assert advance(whole, 2, 7, finished=True).share is None
    assert advance(whole, 2, 7).share == Share(1, {1: 2}, 4, finished=False)


@pytest.mark.parametrize("share", [None, Share(3, {1: 1, 2: 1}, 4)])
def test_only_one_shard_goes_on(share):
    with pytest.raises(ValueError, match="only a single shard"):
        advance(replace(BEGUN, share=share), 1, 1)


STATISTICS = Clock().snapshot()
WANTED = replace(BEGUN, samples=0, share=Share(3, {2: 0}, 4, finished=False))


def load(path, **changes):
    save_calibration(Calibration(replace(BEGUN, **changes), STATISTICS), path)
    return resumed(path)


def resumed(path, tensors=("x",)):
    """What a calibration begins from, and what is told."""
    told = []
    begun, statistics, _ = resume(path, WANTED, tensors, 0, told.append)
    return (Calibration(begun, statistics) if statistics is not None else None), told


def test_the_same_calibration_is_continued(path):
    found, told = load(path)
    assert found == Calibration(BEGUN, STATISTICS)
    assert told == ["continuing an earlier calibration after 8 samples; --set run.restart=true starts again"]


def test_flags_may_have_become_settings(path):
    found, told = load(path, flags={"calibration": {"method": "histogram"}})
    assert found is not None and len(told) == 1


def test_none_is_no_news(path):
    assert resumed(path) == (None, [])


OTHERS = {
    "setting": ({"settings": {"calibration.method": "'max'"}}, "'calibration.method' has changed since"),
    "setting that is gone": ({"settings": {}}, "'calibration.method' has changed since"),
    "float model": ({"model": "d" * 64}, "it is for a different model"),
    "model": ({"source": "d" * 64}, "it is for a different model"),
    "data": ({"data": "d" * 64}, "the calibration data have changed since"),
    "shard": ({"share": Share(3, {1: 2}, 4, finished=False)}, "it is for shard 1 of 3"),
    "number of shards": ({"share": Share(4, {2: 2}, 4, finished=False)}, "it is for shard 2 of 4"),
    "batch size": ({"share": Share(3, {2: 2}, 8, finished=False)}, "it has batches of 8"),
    "no checkpoint": ({"share": None}, "it is not a checkpoint"),
    "finished": ({"share": Share(3, {2: 2}, 4)}, "it is not a checkpoint"),
}


@pytest.mark.parametrize(("changes", "reason"), OTHERS.values(), ids=OTHERS)
def test_another_calibration_is_not_continued(path, changes, reason):
    found, told = load(path, **changes)
    assert found is None
    assert told == [f"not continuing the earlier calibration in '{path}', but starting again: {reason}"]


def test_other_tensors_are_not_continued(path):
    save_calibration(Calibration(BEGUN, STATISTICS), path)
    found, told = resumed(path, ["x", "y"])
    assert found is None
    assert told[0].endswith("it measured different tensors")


@pytest.mark.parametrize("content", [b"", b"text", None], ids=["empty", "text", "cut"])
def test_a_damaged_one_is_not_continued(path, content):
    save_calibration(Calibration(BEGUN, STATISTICS), path)
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    found, told = resumed(path)
    assert found is None
    assert f"'{path}' is damaged" in told[0]


def test_discarding_leaves_nothing_of_it(path):
    save_calibration(Calibration(BEGUN, STATISTICS), path)
    (path.parent / f".{path.name}.0a1b2c3d.partial").touch()
    others = ["calibration.safetensors", ".calibration.safetensors.0a1b2c3d.partial"]
    for name in others:
        (path.parent / name).touch()
    discard_checkpoint(path)
    discard_checkpoint(path)
    assert sorted(item.name for item in path.parent.iterdir()) == sorted(others)
