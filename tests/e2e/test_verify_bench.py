"""``ptq verify`` and ``ptq bench`` as a stranger calls them."""

import json
import re
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from tests.e2e.conftest import Ptq, Refuse
from tests.each_case import each_case, table
from tests.unit.plan.graphs import build, serialized

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@each_case(
    "command, code, message",
    table("""
    verify nowhere.onnx | PTQ-FILE-001 | nowhere.onnx
    bench --set model.input_shape.z=1,3,8,8 | PTQ-MODEL-007 | a shape is given for 'z', which is not an input
    verify --max-kernel-steps -1 | PTQ-USAGE-001 | --max-kernel-steps is -1, expected a number from 0 on
    bench --batch 1 --batch -2 | PTQ-RECIPE-003 | --batch must be at least 1, got -2
    bench --threads 1 --threads -1 | PTQ-RECIPE-003 | 'runtime.threads' is -1, it must be 0 to
    bench --top 3 | PTQ-USAGE-001 | --top lists the slowest nodes of --profile
"""),
)
def test_what_is_refused(folder: Path, refuse: Refuse, command: str, code: str, message: str) -> None:
    refuse(command, code, message)


def test_bench_measures_each_batch_with_each_number_of_threads(folder: Path, ptq: Ptq) -> None:
    shutil.copy("ptq-run/model_int8.onnx", "copy.onnx")
    words = "bench ptq-run/model.float.onnx ptq-run/model_int8.onnx copy.onnx --batch 1 --batch 4 --runs 5"
    outcome = ptq(f"{words} --threads 1 --threads 2 --profile --top 2")
    assert outcome.status == 0, outcome.err
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    wanted = [f"batch {batch}, {threads}" for batch in (1, 4) for threads in ("1 thread", "2 threads")]
    assert [line for line in lines if line in wanted] == wanted
    assert sum(re.match(r"copy.onnx [\d.]+ [µm]s ", line) is not None for line in lines) == 4
    assert [line for line in lines if line.startswith("operators of a run")] == [
        f"operators of a run, {scenario}:" for scenario in wanted
    ]
    assert lines.count("slowest nodes, batch 4, 2 threads:") == 1
    operators = lines[lines.index("operators of a run, batch 1, 1 thread:") :]
    assert any(
        re.match(r"Conv [\d.]+ µs \d+ % [\d.]+ µs \d+ % [\d.]+ µs \d+ % 1 1 1$", line) for line in operators
    )


def test_the_document_of_bench_follows_its_schema(folder: Path, ptq: Ptq) -> None:
    values = json.loads(ptq("bench --batch 1 --batch 2 --threads 1 --runs 5 --profile --json").out)
    schema = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(values)
    assert [item["latency"]["batch"] for item in values["scenarios"]] == [1, 2]
    last = values["scenarios"][1]
    assert last["latency"]["ratios"][0]["interval"]["method"] == "student"
    took = sum(item["microseconds"] for item in last["profiles"][1])
    assert took == pytest.approx(1e6 * last["latency"]["models"][1]["p50"])
    assert sum(item["share"] for item in last["operators"][1]) == pytest.approx(1.0)
    (entry,) = values["scenarios"][0]["inputs"]
    assert entry == {"name": "x", "dtype": "float32", "shape": [1, 3, 8, 8], "batch_axis": 0}


class _Batches(CalibrationDataReader):
    def __init__(self) -> None:
        with np.load("calib.npz") as arrays:
            self._left = iter([{"x": arrays["x"][:6]}, {"x": arrays["x"][6:]}])

    def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
        return next(self._left, None)


def test_a_model_of_onnx_runtimes_own_tool_is_verified(folder: Path, ptq: Ptq) -> None:
    quantize_static("model.onnx", "theirs.onnx", _Batches(), per_channel=True, quant_format=QuantFormat.QDQ)
    values = json.loads(ptq("verify theirs.onnx --data calib.npz --json").out)
    assert values["made_by"].startswith("onnx.quantize")
    assert {item["op"] for item in values["operators"]} >= {"Conv", "Gemm"}
    # Its default is int8 for activations, with zero points: nothing that ort-cpu would make.
    assert values["faults"] == []
    assert all(item["reason"] for item in values["operators"] if item["placement"] == "float")
    assert values["comparison"]["differences"][0]["output"] == "scores"


def test_a_float_model_is_shown_as_a_tree(folder: Path, ptq: Ptq) -> None:
    outcome = ptq("inspect model.onnx --depth 1")
    assert outcome.status == 0
    assert "7.82 k multiply-accumulates per sample, 100 % in integers" in outcome.out
    assert ptq("inspect model.onnx --depth 0").status == 2


@pytest.fixture
def moved(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory alone in a folder, without the data that its recipe names; the current folder."""
    alone = tmp_path / "job"
    shutil.copytree(folder / "ptq-run", alone / "ptq-run")
    for name in ("calib.npz", "eval.npz"):
        (folder / name).unlink()
    shutil.rmtree(folder / "ptq-run")
    monkeypatch.chdir(alone)
    return alone


def test_a_run_that_was_moved_is_verified_without_its_data(moved: Path, ptq: Ptq) -> None:
    outcome = ptq("verify")
    assert outcome.status == 0, outcome
    said = " ".join(outcome.out.split())
    assert "outputs: not compared, because data '" in said
    assert "calib.npz' does not exist" in said
    assert said.endswith("pass --data or --random-inputs pass")


def test_a_run_that_was_moved_is_verified_on_random_inputs(moved: Path, ptq: Ptq) -> None:
    outcome = ptq("verify --random-inputs --json")
    assert outcome.status == 0, outcome
    values = json.loads(outcome.out)
    assert (values["comparison"]["data"], values["comparison"]["samples"]) == ("made-up inputs", 64)
    assert [fault for fault in values["data_faults"] if "calib.npz' does not exist" in fault]
    assert "note: data of the recipe were not used: data '" in " ".join(
        ptq("verify --random-inputs").out.split()
    )


def test_a_file_with_a_wrong_kernel_is_not_written(folder, ptq, refuse):
    (folder / "wrong.toml").write_text(
        'name = "wrong"\nextends = "ort-cpu"\n[op.AveragePool]\nkind = "join"\nnot_together = []\n'
    )
    pool = "AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], ceil_mode=1, count_include_pad=1>"
    graph = f"""(float[N,3,8,8] x) => (float[] y) <float[4,3,3,3] w, float[4,4,1,1] u> {{
        c = Conv<pads=[1,1,1,1]>(x, w) a = {pool}(c) y = Conv(a, u) }}"""
    (folder / "pool.onnx").write_bytes(serialized(build(graph)))
    words = "pool.onnx --data calib.npz --set export.prefer=size --recover none --run new --target"
    said = ("PTQ-RUNTIME-006", "ONNX Runtime computes AveragePool 'a'", "steps of 8 bits off")
    refuse(f"quantize {words} ./wrong.toml", *said, hint="--exclude 'a'")
    assert ptq("calibrate", *words.replace("--recover none ", "").split(), "./wrong.toml").status == 0
    refuse("export --run new --recover none", *said, hint="--exclude 'a'")
    assert ptq("export --run new --recover none --exclude a").status == 0
    assert ptq("verify --run new").status == 0
    assert ptq(f"quantize {words} ort-cpu").status == 0, "its own table keeps the layer in float"
