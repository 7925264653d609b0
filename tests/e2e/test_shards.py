"""Shards that are put together: the same bytes as one run, or a refusal that names what differs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.day import fewer

CALIBRATE = "calibrate model.onnx --data calib.npz --set data.batch_size=2"
FILES = ("calibration.safetensors", "model.float.onnx", "recipe.toml")


def read(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in FILES}


def calibrate_shards(ptq, count, numbers=None, words=CALIBRATE):
    names = []
    for number in numbers or range(1, count + 1):
        outcome = ptq(f"{words} --shard {number}/{count} --run run-{number}")
        assert outcome.status == 0, outcome
        names.append(f"run-{number}")
    return " ".join(names)


@pytest.mark.parametrize("count", [1, 9], ids=lambda count: f"{count} shards")
def test_merged_shards_have_the_bytes_of_one_run(folder: Path, ptq: Any, count: int) -> None:
    assert ptq(f"{CALIBRATE} --run one").status == 0
    names = calibrate_shards(ptq, count).split()
    assert ptq(f"merge {' '.join(reversed(names))} --run all").status == 0
    assert read(folder / "all") == read(folder / "one")
    assert sorted(path.name for path in (folder / "all").iterdir()) == sorted(FILES)


SOURCES = {
    "a callable": "calibrate model.onnx --data data.py:batches --set data.batch_size=3",
    "PyTorch": "calibrate model.pt --arch model.py:build --data calib.npz --set data.batch_size=2",
    "from a recipe": "calibrate --set data.batch_size=5",
}


@pytest.mark.parametrize("words", fewer(SOURCES.values(), 2))
def test_whatever_is_calibrated(folder: Path, ptq: Any, words: str) -> None:
    (folder / "data.py").write_text(
        "import numpy as np\n"
        "def batches():\n"
        "    x = np.load('calib.npz')['x']\n"
        "    for start in (0, 1, 5, 6):\n"
        "        yield {'x': x[start : start + 4]}\n"
    )
    if words == SOURCES["from a recipe"]:
        (folder / "ptq.toml").write_text('[model]\npath = "model.onnx"\n[calibration]\ndata = "calib.npz"\n')
    assert ptq(f"{words} --run one").status == 0
    assert ptq(f"merge {calibrate_shards(ptq, 3, words=words)} --run all").status == 0
    assert read(folder / "all") == read(folder / "one")


def test_runs_from_other_machines(folder: Path, ptq: Any, tmp_path: Path) -> None:
    """Each job writes ptq-run beside its copy of the model; the runs alone are fetched, and merged there."""
    assert ptq(f"{CALIBRATE} --run one").status == 0
    for number in (1, 2):
        assert ptq(f"{CALIBRATE} --shard {number}/2 --run job").status == 0
        shutil.move(folder / "job", folder / f"fetched/by/{number}")
    assert ptq("merge fetched/by/1 fetched/by/2 --run all").status == 0
    assert read(folder / "all") == read(folder / "one")
    assert ptq("export --run all").status == 0


def test_settings_of_the_machine_may_differ(folder: Path, ptq: Any) -> None:
    assert ptq(f"{CALIBRATE} --set runtime.threads=1 --run one").status == 0
    for number in (1, 2):
        words = (
            f"--set runtime.threads={number} --set runtime.checkpoint_every={number + 9} --shard {number}/2 "
            f"--run run-{number}"
        )
        assert ptq(f"{CALIBRATE} {words}").status == 0
    assert ptq("merge run-2 run-1 --run all").status == 0
    assert read(folder / "all")["calibration.safetensors"] == read(folder / "one")["calibration.safetensors"]
    assert (folder / "all/recipe.toml").read_bytes() == (folder / "run-1/recipe.toml").read_bytes()


def test_parts_merge_to_larger_parts(folder: Path, ptq: Any, refuse: Any) -> None:
    assert ptq(f"{CALIBRATE} --run one").status == 0
    calibrate_shards(ptq, 4)
    outcome = ptq("merge run-4 run-1 --partial --run left")
    assert outcome.status == 0
    assert "note: merged shards 1 and 4 of 4; missing: shards 2 and 3 of 4\n" in outcome.out
    assert "next" not in outcome.err
    refuse("export --run left", "PTQ-CALIB-005", "shards 1 and 4 of 4, missing: shards 2 and 3 of 4")
    assert ptq("merge run-2 left run-3 --run all").status == 0
    assert read(folder / "all") == read(folder / "one")


def test_what_is_said(ptq: Any, folder: Path) -> None:
    outcome = ptq(f"{CALIBRATE} --shard 2/4 --run run-2")
    assert "on 4 samples of shard 2 of 4, statistics: histogram\n" in outcome.out
    assert outcome.err == "next, with the other shards: ptq merge run-2 … --run all\n"
    calibrate_shards(ptq, 4, (1, 3, 4))
    outcome = ptq("merge run-1 run-2 run-3 run-4 --run all")
    first, second = outcome.out.splitlines()
    assert first.startswith("merged 4 runs: ")
    assert first.endswith(" tensors on 12 samples, statistics: histogram")
    assert second == "wrote all/calibration.safetensors"
    assert outcome.err == "next: ptq export --onnx --run all\n"


def test_json(ptq: Any, folder: Path) -> None:
    shard = json.loads(ptq(f"{CALIBRATE} --shard 1/2 --run run-1 --json").out)
    assert (shard["samples"], shard["shards"]) == (6, "shard 1 of 2")
    part = json.loads(ptq("merge run-1 --partial --run part --json").out)
    assert (part["runs"], part["shards"], part["missing"]) == (1, "shard 1 of 2", "shard 2 of 2")
    calibrate_shards(ptq, 2, [2])
    merged = json.loads(ptq("merge part run-2 --run all --json").out)
    assert (merged["samples"], merged["shards"], merged["missing"]) == (12, "", "")
    assert json.loads(ptq(f"{CALIBRATE} --json").out)["shards"] == ""


def test_a_shard_alone_is_refused(ptq: Any, refuse: Any) -> None:
    assert ptq(f"{CALIBRATE} --shard 2/3").status == 0
    says = "'ptq-run/calibration.safetensors' holds shard 2 of 3, missing: shards 1 and 3 of 3"
    for command in ("export", "evaluate"):
        refuse(command, "PTQ-CALIB-005", says, hint="ptq merge")


def test_a_shard_of_few_batches_may_be_empty(folder: Path, ptq: Any) -> None:
    outcome = ptq(f"{CALIBRATE} --shard 7/8")
    assert outcome.status == 0
    assert "on 0 samples of shard 7 of 8" in outcome.out
    assert "was 0 in every sample" not in outcome.out


def test_a_recipe_that_was_edited_is_noticed(folder: Path, ptq: Any, refuse: Any) -> None:
    calibrate_shards(ptq, 2)
    path = folder / "run-2/recipe.toml"
    path.write_text(path.read_text().replace('method = "auto"', 'method = "max"'))
    says = "'run-1' and 'run-2' are not shards of the same"
    refuse("merge run-1 run-2 --run all", "PTQ-MERGE-001", says, "'amax.method' is auto in the first")


def test_overlapping_and_missing_shards_are_refused(ptq: Any, refuse: Any) -> None:
    names = calibrate_shards(ptq, 2)
    refuse("merge run-1 --run all", "PTQ-CALIB-005", "not among the runs: shard 2 of 2", hint="--partial")
    assert ptq(f"merge {names} --run all").status == 0
    refuse("merge all all --run more", "PTQ-MERGE-002", "both hold shard 1 of 1")


DAMAGE = {
    "calibration.safetensors": ("PTQ-CALIB-002", "'run-2/calibration.safetensors' is damaged"),
    "model.float.onnx": ("PTQ-CALIB-003", "'run-2/model.float.onnx' is not the model that was calibrated"),
    "recipe.toml": ("PTQ-RECIPE-001", "run-2/recipe.toml is not valid TOML"),
}


def test_a_run_whose_file_is_damaged_or_gone(folder: Path, ptq: Any, refuse: Any) -> None:
    words = f"merge {calibrate_shards(ptq, 2)} --run all"
    for name, refusal in DAMAGE.items():
        path = folder / "run-2" / name
        content = path.read_bytes()
        path.write_bytes(content[:-7] + b"\x00\xffdamage")
        refuse(words, *refusal)
        path.unlink()
        refuse(words, "PTQ-RUN-001", f"'run-2/{name}' does not exist")
        path.write_bytes(content)


def test_the_result_is_none_of_the_runs(ptq: Any, refuse: Any) -> None:
    names = calibrate_shards(ptq, 2)
    refuse(f"merge {names} --run ./run-2", "PTQ-USAGE-001", "would overwrite one of the runs")
