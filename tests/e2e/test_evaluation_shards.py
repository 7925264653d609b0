"""Shards of an evaluation: the report of one process, byte for byte but for its times, or a refusal."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptq_cli

EVALUATE = "evaluate --eval-data eval.npz --set data.batch_size=3"
FILES = ("report.json", "report.md", "report.html", "report.toml", "details.json", "junit.xml")
TIME = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}(:|&#58;)[0-9]{2}(:|&#58;)[0-9]{2}Z")
METRICS = """\
import numpy as np


def margin(output, labels):
    return np.sort(output, axis=1)[:, -1] - output[np.arange(len(labels)), labels]


class Mean:
    def __init__(self):
        self.total = 0.0

    def update(self, output, labels):
        self.total += float(output.sum())

    def compute(self):
        return self.total
"""


def reports(run: Path) -> dict[str, bytes]:
    """The files of a report without its times."""
    return {name: TIME.sub(b"", (run / name).read_bytes()) for name in FILES}


def shards(ptq: Any, count: int, words: str = EVALUATE, numbers: tuple[int, ...] = ()) -> None:
    for number in numbers or range(1, count + 1):
        outcome = ptq(f"{words} --shard {number}/{count}")
        assert outcome.status == 0, outcome


OWN = "--metric metrics.py:margin --metric auroc --metric torchmetrics.classification:MulticlassF1Score"
CASES = {
    "2 shards": (2, EVALUATE),
    "more shards than batches": (9, EVALUATE),
    "metrics of one's own": (3, f"{EVALUATE} {OWN}"),
    "a limit": (2, f"{EVALUATE} --max-drop top1=0.5 --min sqnr_db=90"),
    "several models": (2, f"{EVALUATE} --model ptq-run/model_int8.onnx --model other.onnx"),
    "fewer samples": (2, f"{EVALUATE} --eval-samples 11"),
}


@pytest.mark.parametrize(("count", "words"), CASES.values(), ids=CASES)
def test_merged_shards_are_the_report_of_one_process(folder: Path, ptq: Any, count: int, words: str) -> None:
    (folder / "metrics.py").write_text(METRICS)
    assert ptq("export --amax max --output other.onnx").status == 0
    one = ptq(words)
    several = "other.onnx" in words
    runs = [Path("ptq-run/model_int8"), Path("ptq-run/other")] if several else [Path("ptq-run")]
    expected = [reports(run) for run in runs]
    for run in runs:
        (folder / run / "report.json").write_text("{}")
    shards(ptq, count, words)
    merged = ptq("merge" if several else "merge ptq-run")
    assert [reports(run) for run in runs] == expected
    assert (merged.status, merged.out) == (one.status, one.out)
    assert one.status == (3 if "--min" in words else 0)


def test_shards_from_other_machines_need_no_data(folder: Path, ptq: Any) -> None:
    """Each has a copy of the folder; only the shards come back, into whichever folder."""
    assert ptq(EVALUATE).status == 0
    expected = reports(folder / "ptq-run")
    shards(ptq, 2)
    (folder / "fetched/by").mkdir(parents=True)
    names = [path.name for path in (folder / "ptq-run").glob("evaluation.shard-*")]
    for name in names:
        shutil.move(folder / "ptq-run" / name, folder / "fetched/by" / name)
    (folder / "eval.npz").unlink()
    (folder / "calib.npz").unlink()
    files = " ".join(f"fetched/by/{name}" for name in sorted(names, reverse=True))
    outcome = ptq(f"merge {files} --json")
    assert outcome.status == 0, outcome
    assert json.loads(outcome.out)["evaluation"]["samples"] == 20
    assert reports(folder / "ptq-run") == expected
    # Beside models of their own they are those models' shards, and nothing else is asked for.
    shutil.move(folder / "ptq-run", folder / "other")
    for name in names:
        shutil.move(folder / "fetched/by" / name, folder / "other" / name)
    (folder / "other/report.json").unlink()
    assert ptq("merge other").status == 0
    assert reports(folder / "other").keys() == expected.keys()
    assert not (folder / "ptq-run").exists()


def test_what_is_not_there_to_merge_is_named(folder: Path, refuse: Any) -> None:
    nothing = "'ptq-run' has no evaluation shards"
    refuse("merge", "PTQ-USAGE-001", f"no runs were given, and {nothing}")
    refuse("merge ptq-run", "PTQ-USAGE-001", f"{nothing}, and is the only run to merge")
    refuse("merge fetched/none.safetensors", "PTQ-FILE-001", "'fetched/none.safetensors' does not exist")


DATA = """\
import numpy as np
from pathlib import Path


def batches():
    with np.load("eval.npz") as file:
        arrays = dict(file)
    for start in range(0, 20, 2):
        if start == 14 and Path("stop").exists():
            raise RuntimeError("stopped")
        yield {"x": arrays["x"][start : start + 2], "label": arrays["label"][start : start + 2]}
"""


def test_a_shard_goes_on_where_it_was_stopped(folder: Path, ptq: Any) -> None:
    (folder / "data.py").write_text(DATA)
    words = "evaluate --eval-data data.py:batches --set data.batch_size=2 --set runtime.checkpoint_every=0"
    assert ptq(words).status == 0
    expected = reports(folder / "ptq-run")
    (folder / "stop").touch()
    assert ptq(f"{words} --shard 1/2").status == 2
    (folder / "stop").unlink()
    outcome = ptq(f"{words} --shard 1/2")
    assert "continuing an earlier evaluation after 8 samples" in outcome.err or "6 samples" in outcome.err
    shards(ptq, 2, words, (2,))
    assert ptq("merge ptq-run").status == 0
    assert reports(folder / "ptq-run") == expected
    assert not list((folder / "ptq-run").glob("*.partial.*"))


def test_what_is_said_of_a_shard(folder: Path, ptq: Any) -> None:
    outcome = ptq(f"{EVALUATE} --shard 2/4")
    assert outcome.out == (
        "evaluated 6 samples of shard 2 of 4\nwrote ptq-run/evaluation.shard-2-of-4.safetensors\n"
    )
    assert outcome.err == "next, with the other shards: ptq merge ptq-run\n"
    shutil.copytree(folder / "ptq-run", folder / "part")
    said = ptq(f"{EVALUATE} --shard 1/4 --run part --json")
    assert json.loads(said.out) == {
        "run": "part",
        "file": "part/evaluation.shard-1-of-4.safetensors",
        "samples": 6,
        "shard": "shard 1 of 4",
        "unit": "sample",
    }


def again(words: str, number: int = 2) -> Callable[[Path, Any], None]:
    return lambda _folder, ptq: shards(ptq, 2, words, (number,))


def of_another_model(_folder: Path, ptq: Any) -> None:
    assert ptq("export --amax max").status == 0
    shards(ptq, 2, EVALUATE, (2,))


def of_other_data(folder: Path, ptq: Any) -> None:
    arrays = dict(np.load(folder / "eval.npz"))
    np.savez(folder / "eval.npz", **{**arrays, "x": arrays["x"] * 2})
    shards(ptq, 2, EVALUATE, (2,))


DIFFERENT = {
    "another batch size": (
        again("evaluate --eval-data eval.npz --set data.batch_size=4"),
        "the batch size is 3 in the",
    ),
    "another metric": (again(f"{EVALUATE} --metric f1"), "the metrics is "),
    "another limit": (again(f"{EVALUATE} --max-drop top1=0.1"), "'gate.max_drop' is {} in the first and"),
    "another model": (of_another_model, "the quantized model is "),
    "other data": (of_other_data, "the evaluation data is "),
}


@pytest.mark.parametrize(("change", "says"), DIFFERENT.values(), ids=DIFFERENT)
def test_shards_of_other_evaluations_are_refused(folder, ptq, refuse, change, says):
    shards(ptq, 2)
    change(folder, ptq)
    refuse("merge ptq-run", "PTQ-MERGE-001", "are not shards of the same evaluation", says)


def test_shards_that_do_not_make_a_whole_are_refused(folder: Path, ptq: Any, refuse: Any) -> None:
    shards(ptq, 3, numbers=(1, 3))
    refuse("merge ptq-run", "PTQ-EVAL-002", "not among the shards: shard 2 of 3", hint="missing shards")
    one = "ptq-run/evaluation.shard-1-of-3.safetensors"
    refuse(f"merge ptq-run {one}", "PTQ-MERGE-002", f"'{one}' and '{one}' both hold shard 1 of 3")
    refuse("merge ptq-run --partial", "PTQ-USAGE-001", "--partial merges calibrations")
    shutil.copytree(folder / "ptq-run", folder / "plain", ignore=shutil.ignore_patterns("evaluation*"))
    refuse("merge ptq-run plain", "PTQ-EVAL-002", "'plain' is not an evaluation shard")
    shards(ptq, 2, numbers=(2,))
    refuse("merge ptq-run", "PTQ-MERGE-001", "the number of shards is ")


def test_shards_of_another_run_or_damaged_ones_are_refused(folder: Path, ptq: Any, refuse: Any) -> None:
    shards(ptq, 2)
    files = [folder / f"ptq-run/evaluation.shard-{number}-of-2.safetensors" for number in (1, 2)]
    assert ptq("export --amax max").status == 0
    refuse(
        "merge ptq-run",
        "PTQ-MERGE-001",
        "is not a shard of an evaluation of the models in 'ptq-run': the quant",
    )
    refuse("merge ptq-run --run nowhere", "PTQ-RUN-001", "'nowhere/calibration.safetensors' does not exist")
    content = bytearray(files[0].read_bytes())
    content[-3] ^= 1
    files[0].write_bytes(content)
    refuse("merge ptq-run", "PTQ-EVAL-001", "shard-1-of-2.safetensors' is damaged: its checksum is wrong")
    shutil.copyfile(folder / "ptq-run/calibration.safetensors", files[0])
    refuse(
        "merge ptq-run", "PTQ-EVAL-001", "is not a shard of an evaluation", hint="ptq evaluate --shard 2/8"
    )
    files[0].write_bytes(files[1].read_bytes()[:90])
    refuse("merge ptq-run", "PTQ-EVAL-001", "is damaged")


UNSUITED = {
    "--metric metrics.py:Mean": ("PTQ-METRIC-001", "Mean cannot be measured in parts: a class with"),
    "--recipe pearson.toml": (
        "PTQ-METRIC-001",
        "r cannot be measured in parts: its state in torchmetrics does",
    ),
    "--shard 3/2": ("PTQ-USAGE-001", "there is no shard '3/2'"),
}


@pytest.mark.parametrize(("words", "says"), UNSUITED.items(), ids=UNSUITED)
def test_what_cannot_be_measured_in_parts_is_refused(folder, refuse, words, says):
    if "pearson" in words:
        pytest.importorskip("torchmetrics")
    (folder / "metrics.py").write_text(METRICS)
    metric = '[[metric]]\nname = "r"\nmetric = "torchmetrics:PearsonCorrCoef"\nhigher_is_better = true\n'
    (folder / "pearson.toml").write_text(metric)
    refuse(f"{EVALUATE} --shard 1/2 {words}", *says)


def test_from_python(folder: Path) -> None:
    words: dict[str, Any] = {"eval_data": "eval.npz", "batch_size": 4, "latency": False}
    expected = ptq_cli.evaluate(**words).report
    for shard in ("1/2", "2/2"):
        found = ptq_cli.evaluate_shard(shard, **words)
    assert (found.shard, found.samples) == ("shard 2 of 2", 8)
    (merged,) = ptq_cli.merge_evaluation(["ptq-run"])
    assert merged.report.metrics == expected.metrics
