"""A statement beside each file, and the file made again from what it names: what was changed is refused."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ptq_cli.cli.commands.recipe import schema_of
from tests.e2e.conftest import Ptq, Refuse, make_onnx, make_weights
from tests.e2e.test_large_model import large  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
RUN = Path("ptq-run")
MODEL, STATEMENT = RUN / "model_int8.onnx", RUN / "model_int8.intoto.json"
VERIFY = "verify --rederive"
SAME = ", made again from what model_int8.intoto.json names\npass\n"


def stated(path: Path = STATEMENT) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_statement_says_what_a_file_was_made_from(folder: Path, ptq: Ptq) -> None:
    statement = stated()
    jsonschema.Draft202012Validator(json.loads(schema_of("intoto.json"))).validate(statement)
    assert list(statement) == ["_type", "predicateType", "subject", "predicate"]
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    found = statement["predicate"]
    for item in (*statement["subject"], found["float_model"], found["statistics"], found["recipe"]):
        assert item["digest"]["sha256"] == sha256(RUN / item["name"])
    assert [item["name"] for item in found["sources"]] == ["model.onnx"]
    assert found["recipe"]["text"] == (RUN / "recipe.toml").read_text()
    assert found["evaluation"]["verdict"] == "no gate"
    assert ptq("evaluate --min sqnr_db=99").status == 3
    assert stated()["predicate"]["evaluation"] == {
        "verdict": "fail",
        "report": {"name": "report.json", "digest": {"sha256": sha256(RUN / "report.json")}},
    }
    assert ptq("export").status == 0
    assert stated()["predicate"]["evaluation"] is None
    assert stated()["subject"] == statement["subject"]
    assert ptq("export --weight-bits 4").status == 0
    assert [path.name for path in RUN.glob("*.intoto.json")] == ["model_w4a8.intoto.json"]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_made_again_with_the_same_bytes(folder: Path, ptq: Ptq) -> None:
    before = sorted(folder.rglob("*"))
    assert ptq(VERIFY).out.endswith(SAME)
    assert ptq(f"{VERIFY} {MODEL} --json").status == 0
    assert sorted(folder.rglob("*")) == before
    # A file of its own has settings of its own, and no recipe.toml.
    options = "--amax mse --weight-bits 4 --set runtime.threads=3 -o elsewhere/other.onnx"
    assert ptq(f"export {options}").status == 0
    outcome = ptq(f"{VERIFY} elsewhere/other.onnx")
    assert (outcome.status, outcome.out.count("\n")) == (0, 2)
    # The data and the source are not needed.
    for name in ("calib.npz", "model.onnx"):
        (folder / name).unlink()
    assert ptq(f"{VERIFY} elsewhere/other.onnx").status == 0


def test_what_it_is_made_from_can_be_named(folder: Path, ptq: Ptq, refuse: Refuse) -> None:
    said = "'model.onnx' is what the float model was prepared from"
    refuse(f"{VERIFY} --float model.onnx", "PTQ-USAGE-001", said, hint="ptq export --float model.onnx")
    published = folder / "a/b/published"
    published.mkdir(parents=True)
    for path in (MODEL, STATEMENT, RUN / "calibration.safetensors", RUN / "recipe.toml"):
        shutil.move(path, published / path.name)
    shutil.move(RUN / "model.float.onnx", published / "float.onnx")
    named = "--float {0}/float.onnx --statistics {0}/calibration.safetensors --recipe {0}/recipe.toml"
    outcome = ptq(f"{VERIFY} {published}/model_int8.onnx {named.format(published)}")
    assert (outcome.status, outcome.err) == (0, "")
    # The prepared model can be made from the source that the statement names.
    assert ptq("export --float model.onnx --data calib.npz -o again.onnx").status == 0
    named = named.replace("{0}/float.onnx", "again.onnx").format(published)
    assert ptq(f"{VERIFY} {published}/model_int8.onnx {named}").status == 0


Change = Callable[[onnx.ModelProto], None]


def constant(model: onnx.ModelProto, kind: type, *, size: int) -> onnx.TensorProto:
    """A constant of a type with at least so many values."""
    arrays = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    return next(
        item
        for item in model.graph.initializer
        if arrays[item.name].dtype == kind and arrays[item.name].size >= size
    )


def step_a_weight(model: onnx.ModelProto) -> None:
    item = constant(model, np.int8, size=100)
    values = numpy_helper.to_array(item).copy()
    values.flat[57] += 1 if values.flat[57] < 100 else -1
    item.CopyFrom(numpy_helper.from_array(values, item.name))


def swap_scales(model: onnx.ModelProto) -> None:
    item = constant(model, np.float32, size=8)
    values = numpy_helper.to_array(item).copy()
    values[[0, 1]] = values[[1, 0]]
    item.CopyFrom(numpy_helper.from_array(values, item.name))


def add_a_node(model: onnx.ModelProto) -> None:
    name = model.graph.output[0].name
    model.graph.node[-1].output[0] = "inner"
    model.graph.node.append(helper.make_node("Identity", ["inner"], [name], name="more"))


def remove_a_clamp(model: onnx.ModelProto) -> None:
    (node,) = (node for node in model.graph.node if node.op_type == "GlobalAveragePool")
    node.op_type = "GlobalMaxPool"


def change_metadata(model: onnx.ModelProto) -> None:
    (item,) = (item for item in model.metadata_props if item.key == "ptq.target")
    item.value = "tensorrt"


def say_more(model: onnx.ModelProto) -> None:
    model.graph.doc_string = "harmless"


CHANGES: dict[str, tuple[Change, str]] = {
    "a weight": (
        step_a_weight,
        "constant 'conv.weight.quantized': 1 of 288 values differ, the first at [",
    ),
    "a scale": (swap_scales, "values differ, the first at [0] is"),
    "a node": (add_a_node, "node 'more': was added (Identity)"),
    "an operator": (remove_a_clamp, "node 'pool': is a GlobalMaxPool, expected GlobalAveragePool"),
    "metadata": (change_metadata, "metadata 'ptq.target': is 'tensorrt', expected 'ort-cpu'"),
    "a comment": (say_more, "bytes: nodes, constants and metadata are equal, and bytes differ from"),
}


@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES.keys())
def test_a_file_that_was_changed_is_refused(folder: Path, ptq: Ptq, change: Change, said: str) -> None:
    model = onnx.load(MODEL)
    change(model)
    onnx.save(model, MODEL)
    for honest in (True, False):  # A statement that was changed with the file is of no help.
        outcome = ptq(VERIFY)
        assert outcome.status == 3
        assert said in outcome.out
        assert ("\n  file: stated " in outcome.out) == honest
        statement = stated()
        statement["subject"][0]["digest"]["sha256"] = sha256(MODEL)
        STATEMENT.write_text(json.dumps(statement))


def forge(*keys: str | int, value: object) -> None:
    statement = stated()
    place: Any = statement
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    STATEMENT.write_text(json.dumps(statement))


NONE = "0" * 64
FORGERIES: dict[str, tuple[tuple[str | int, ...], object, str]] = {
    "the file": (("subject", 0, "digest", "sha256"), NONE, "file: stated 0000"),
    "the float model": (("predicate", "float_model", "digest", "sha256"), NONE, "float model: stated 0000"),
    "the statistics": (("predicate", "statistics", "digest", "sha256"), NONE, "statistics: stated 0000"),
    "the recipe": (("predicate", "recipe", "digest", "sha256"), NONE, "recipe: stated 0000"),
    "the source": (("predicate", "sources", 0, "digest", "sha256"), NONE, "sources: stated 0000"),
    "no source": (("predicate", "sources"), [], "sources: stated none"),
    "the target": (("predicate", "target"), "tensorrt", "target: stated tensorrt, found ort-cpu"),
    "a run": (("predicate", "by_runs"), ["round"], "decided by runs: stated round, found none"),
    "the verdict": (("predicate", "evaluation", "verdict"), "pass", "pass, found"),
    "the report": (("predicate", "evaluation", "report", "digest", "sha256"), NONE, "report: stated 0000"),
}


@pytest.mark.parametrize(("keys", "value", "said"), FORGERIES.values(), ids=FORGERIES.keys())
def test_a_statement_that_was_changed_is_refused(
    folder: Path, ptq: Ptq, keys: tuple[str | int, ...], value: object, said: str
) -> None:
    forge(*keys, value=value)
    outcome = ptq(VERIFY)
    assert outcome.status == 3
    assert said in outcome.out
    assert outcome.out.endswith("FAIL\n")
    document = json.loads(ptq(f"{VERIFY} --json").out)
    assert (document["verdict"], document["differences"]) == ("fail", [])


def test_a_size_that_cannot_be_is_refused(folder: Path, refuse: Refuse) -> None:
    forge("predicate", "placement", "float_bytes", value=0)
    refuse(VERIFY, "PTQ-STATEMENT-001", "'predicate.placement.float_bytes' is 0, expected at least 1")


def test_another_float_model_is_refused(folder: Path, ptq: Ptq) -> None:
    onnx.save(make_onnx(make_weights(seed=1)), folder / "other.onnx")
    assert ptq("export --float other.onnx --data calib.npz -o prepared.onnx").status == 0
    outcome = ptq(f"{VERIFY} --float prepared.onnx")
    assert outcome.status == 3
    assert "\n  float model: stated " in outcome.out
    assert "not made again: these are not the files that the statement names\n" in outcome.out


def test_a_report_that_is_not_here_is_not_compared(folder: Path, ptq: Ptq) -> None:
    (RUN / "report.json").unlink()
    outcome = ptq(VERIFY)
    assert outcome.status == 0
    assert "note: the report that the statement names is not here, and was not compared\n" in outcome.out


def test_constants_in_a_file_of_their_own_belong_to_it(large: Path, ptq: Ptq) -> None:  # noqa: F811 - the fixture
    for words in ("calibrate large.onnx --data x.npz", "export"):
        assert ptq(words).status == 0
    assert [item["name"] for item in stated()["subject"]] == ["model_int8.onnx", "model_int8.onnx.data"]
    assert ptq(VERIFY).status == 0
    data = RUN / "model_int8.onnx.data"
    content = bytearray(data.read_bytes())
    content[5] ^= 1
    data.write_bytes(content)
    outcome = ptq(VERIFY)
    assert outcome.status == 3
    assert "constant 'layer.0.weight.quantized': 1 of 4,096 values differ, the first at [0, 5]" in outcome.out


def test_a_file_that_running_models_decided_needs_the_data(folder: Path, ptq: Ptq, refuse: Refuse) -> None:
    assert ptq("export --set recovery.rungs=round").status == 0
    assert stated()["predicate"]["by_runs"] == ["round"]
    assert ptq(VERIFY).status == 0
    shutil.move("calib.npz", "moved.npz")
    assert ptq(f"{VERIFY} --data moved.npz").status == 0
    refuse(VERIFY, "PTQ-FILE-001", "'calib.npz' does not exist")
    refuse(f"{VERIFY} --data eval.npz", "PTQ-CALIB-003", "'eval.npz' has changed")


def test_what_a_clock_decided_cannot_be_made_again(folder: Path, ptq: Ptq, refuse: Refuse) -> None:
    assert ptq("export --prefer latency").status == 0
    said = "the file cannot be made again: times of a machine placed its layers"
    refuse(VERIFY, "PTQ-STATEMENT-002", said, hint="sha256sum")


DAMAGED = {
    "nothing": (None, "'ptq-run/model_int8.onnx' has no statement"),
    "no JSON": ("{", "is not valid JSON"),
    "a list": ("[]", "is not a statement of ptq"),
    "another predicate": ('{"predicateType": "https://slsa.dev/provenance/v1"}', "is not a statement of ptq"),
    "half": (
        '{"_type": "x", "predicateType": "https://pypi.org/project/ptq-cli/quantization/v1"}',
        "missing",
    ),
}


@pytest.mark.parametrize(("content", "said"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_statement_is_refused(
    folder: Path, refuse: Refuse, ptq: Ptq, content: str | None, said: str
) -> None:
    if content is None:
        STATEMENT.unlink()
    else:
        STATEMENT.write_text(content)
    refuse(VERIFY, "PTQ-STATEMENT-001", said, hint="ptq export writes one beside each file")
    # An evaluation needs none, and leaves alone what it cannot read.
    assert ptq("evaluate").status == 0
    assert (STATEMENT.read_text() if STATEMENT.is_file() else None) == content


# What a library chooses by the processor, told that this is one without vectors of its own.
PLAIN = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F",
    "ATEN_CPU_CAPABILITY": "default",
}
EXPORTS = (
    *("--amax entropy", "--amax mse --set amax.weight_method=mse", "--weight-bits 4", "--target tensorrt"),
    *("--set activations.bits=4 --amax mse", "--set weights.quantizer=dorefa --weight-bits 4"),
)


@pytest.mark.nightly
def test_a_processor_without_vectors_and_eight_threads_make_the_same_bytes(folder: Path, ptq: Ptq) -> None:
    assert ptq("quantize model.onnx --data calib.npz --prefer size --run ptq-run/plain").status == 0
    for number, options in enumerate(EXPORTS):
        made = set()
        for threads in (8, 1):
            file = RUN / f"plain/{number}.onnx"
            words = f"{options} --recover none --set runtime.threads={threads} --run {file.parent} -o {file}"
            outcome = ptq(f"export {words}")
            assert outcome.status == 0, outcome.err
            made.add(file.read_bytes())
        assert len(made) == 1, options
    environment = {**os.environ, **PLAIN, "NUMBA_CACHE_DIR": str(folder / "compiled"), "OMP_NUM_THREADS": "8"}
    command = [sys.executable, "-m", "tools.processors.again", str(folder / RUN / "plain")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count(": pass\n")) == (0, len(EXPORTS) + 1), (
        done.stdout + done.stderr
    )


def test_options_of_another_use_are_refused(refuse: Refuse) -> None:
    refuse(f"{VERIFY} --pack cases", "PTQ-USAGE-001", "--pack is not for --rederive")
    refuse("verify --statistics x", "PTQ-USAGE-001", "--statistics is for --rederive")
