"""``ptq calibrate --moments``: the same bytes however it is done, and weights chosen without the data."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ptq_cli
from ptq_cli.core.errors import PtqError

MOMENTS = "calibrate --moments --set data.batch_size=2"


def read(run: str = "ptq-run") -> bytes:
    return Path(run, "moments.safetensors").read_bytes()


def test_weights_are_chosen_from_moments_without_the_data(folder: Path, ptq: Any) -> None:
    outcome = ptq(MOMENTS)
    assert outcome.status == 0, outcome
    assert "collected the moments of 2 tensors on 12 samples\n" in outcome.out
    assert "wrote ptq-run/moments.safetensors" in outcome.out
    assert "next: ptq export --recover weighed" in outcome.err
    assert ptq("export --recover weighed,round --weight-bits 4 --output both.onnx").status == 0
    (folder / "calib.npz").unlink()
    outcome = ptq("export --recover weighed --weight-bits 4")
    assert outcome.status == 0, outcome
    assert "recovered 2 layers (weighed): the error of a layer fell by" in outcome.out
    assert "no samples were held out" in outcome.out
    (told,) = json.loads(ptq("export --json").out)["recovery"]["effects"]
    assert (told["rung"], told["samples"], told["decided_by"]) == ("weighed", 12, 0)
    assert told["before"] == "nan"


def test_shards_threads_and_batches_give_the_same_bytes(folder: Path, ptq: Any) -> None:
    assert ptq(MOMENTS).status == 0
    whole = read()
    for words in (
        "--set data.batch_size=5 --set runtime.threads=2",
        "--set data.batch_size=3 --set runtime.max_memory=4GB",
    ):
        assert ptq(f"calibrate --moments {words}").status == 0
        assert read() == whole
    (folder / "ptq-run/moments.safetensors").unlink()
    for number in (1, 2, 3):
        shutil.copytree("ptq-run", f"part-{number}")
        outcome = ptq(f"{MOMENTS} --run part-{number} --shard {number}/3")
        assert outcome.status == 0, outcome
        assert f"samples of shard {number} of 3" in outcome.out
    outcome = ptq("merge part-3 part-1 part-2 --run all")
    assert "merged 3 runs: 2 tensors on 12 samples, moments" in outcome.out
    assert read("all") == whole
    for name in ("calibration.safetensors", "model.float.onnx", "recipe.toml"):
        assert (folder / "all" / name).read_bytes() == (folder / "ptq-run" / name).read_bytes()


@pytest.mark.parametrize(("limit", "batch"), [(2**30, 4), (500, 9)], ids=["one block", "several blocks"])
def test_what_was_interrupted_continues(folder, ptq, monkeypatch, limit, batch):
    assert ptq(MOMENTS).status == 0
    whole = read()
    monkeypatch.setattr("ptq_cli.recover.collect_moments.IN_MEMORY", limit)
    batches = 0

    def stop(step: Any) -> None:
        nonlocal batches
        batches += step.stage == "moments" and step.done > 0
        if batches == batch:
            raise KeyboardInterrupt

    settings: Any = {"batch_size": 2, "checkpoint_every": 0.0}
    with pytest.raises(KeyboardInterrupt):
        ptq_cli.collect_moments(progress=stop, **settings)
    assert list(Path("ptq-run").glob("moments.partial-*"))
    notes: list[str] = []
    ptq_cli.collect_moments(progress=lambda step: notes.append(step.note), **settings)
    assert any("continuing an earlier calibration after" in note for note in notes)
    assert read() == whole
    assert not list(Path("ptq-run").glob("moments.partial-*"))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_processes_of_torchrun_write_the_bytes_of_one(folder: Path, ptq: Any) -> None:
    assert ptq(MOMENTS).status == 0
    whole = read()
    Path("ptq-run/moments.safetensors").unlink()
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "ptq_cli",
        "--",
    ]
    done = subprocess.run([*launch, *MOMENTS.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read() == whole


def test_moments_of_something_else_are_refused(folder: Path, ptq: Any, refuse: Any) -> None:
    refuse("calibrate --moments --run nothing", "PTQ-RUN-001", "nothing was made in 'nothing'")
    assert ptq(MOMENTS).status == 0
    refuse(
        "export --recover weighed --set amax.percentile=90",
        "PTQ-RECOVERY-003",
        "moments of other ranges of activations",
    )
    assert ptq("export --recover weighed").status == 0
    path = folder / "ptq-run/moments.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    refuse("export --recover weighed", "PTQ-RECOVERY-002", "is damaged")
    path.write_bytes(content)
    assert ptq("calibrate model.onnx --data calib.npz --samples 7 --set data.batch_size=2").status == 0
    refuse("export --recover weighed", "PTQ-RECOVERY-003", "moments of another calibration")
    assert ptq(f"{MOMENTS} --samples 7 --shard 1/2").status == 0
    refuse("export --recover weighed", "PTQ-RECOVERY-003", "shard 1 of 2, missing: shard 2 of 2")
    (folder / "calib.npz").write_bytes((folder / "calib.npz").read_bytes() + b" ")
    with pytest.raises(PtqError, match="has changed since it was calibrated, and --moments reads it again"):
        ptq_cli.collect_moments()
