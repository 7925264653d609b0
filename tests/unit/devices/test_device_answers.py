"""A folder of cases is packed, run by the script that travels, and what comes back is judged or refused."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ptq_cli.core.errors import AnswerError, CasesError, OtherCasesError, PtqError
from ptq_cli.devices import run as runner
from ptq_cli.devices.device_answers import run_answers
from ptq_cli.devices.run_cases import run_pack
from ptq_cli.evaluation.document.device_document import DeviceAnswer
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory
from tests.graphs import parsed

FILE = """<ir_version: 10, opset_import: ["": 20]>
g (float[n, 3, 9, 9] x) => (float[n, 5] y, float[n, 5] z)
<float sx = {0.01}, uint8 zx = {120}, float[4] sw = {0.01, 0.02, 0.005, 0.03}, int8[4] zw = {0, 0, 0, 0},
 float sc = {0.09}, uint8 zc = {131}, float sf = {0.02}, int8 zf = {0}> {
    xq = QuantizeLinear(x, sx, zx)
    xd = DequantizeLinear(xq, sx, zx)
    wd = DequantizeLinear <axis = 0> (w, sw, zw)
    c = Conv <kernel_shape = [3, 3]> (xd, wd)
    cq = QuantizeLinear(c, sc, zc)
    cd = DequantizeLinear(cq, sc, zc)
    r = Add(cd, cd)
    rq = QuantizeLinear(r, sc, zc)
    rd = DequantizeLinear(rq, sc, zc)
    f = Flatten(rd)
    fq = QuantizeLinear(f, sc, zc)
    fd = DequantizeLinear(fq, sc, zc)
    vd = DequantizeLinear(v, sf, zf)
    y = MatMul(fd, vd)
    dq, sd, zd = DynamicQuantizeLinear(y)
    sums = MatMulInteger(dq, u, zd)
    floats = Cast <to = 1> (sums)
    scale = Mul(sd, sf)
    z = Mul(floats, scale)
}"""
CONV, ADD, MATMUL, SUMS = "kernel-001", "kernel-002", "kernel-003", "kernel-004"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    random = np.random.default_rng(7)
    shapes = {"w": (4, 3, 3, 3), "v": (196, 5), "u": (5, 5)}
    weights = {name: random.integers(-60, 61, shape, np.int8) for name, shape in shapes.items()}
    onnx.save(parsed(FILE, weights), folder / "file.onnx")
    request = Request(settings={"target": "ort-cpu"}, folder=folder)
    cases = folder / "cases"
    run_pack(request, RunDirectory(folder), folder / "file.onnx", cases, samples=3, made_up=True)
    ran = [
        sys.executable,
        "-I",
        "cases/run.py",
        "--repeats",
        "2",
        "--name",
        "board",
        "-o",
        "answer.safetensors",
    ]
    done = subprocess.run(ran, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6 and all("as expected" in line for line in lines[:5])
    return folder


@pytest.fixture
def cases(packed: Path) -> Path:
    return packed / "cases"


Change = Callable[..., Path]


@pytest.fixture
def change(packed: Path, tmp_path: Path) -> Change:
    """Returns an answer whose tensors and texts were changed."""

    def changed(
        edit: Callable[[dict[str, np.ndarray]], Any] = lambda _: None, name: str = "answer", **texts: str
    ) -> Path:
        tensors = {key: array.copy() for key, array in load_file(packed / "answer.safetensors").items()}
        with safe_open(packed / "answer.safetensors", "numpy") as file:
            about: Mapping[str, str] = file.metadata()
        edit(tensors)
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path, {**about, **texts})
        return path

    return changed


def answer(path: Path, cases: Path) -> DeviceAnswer:
    (found,) = run_answers(path, cases).devices
    return found


def test_the_kernels_are_cut_out_of_the_file_as_it_is(cases: Path) -> None:
    manifest = json.loads((cases / "manifest.json").read_text())
    found = {
        (item["op"], item["exact"]): [node.op_type for node in onnx.load(cases / item["model"]).graph.node]
        for item in manifest["cases"][1:]
    }
    read, quantize = "DequantizeLinear", "QuantizeLinear"
    assert found == {
        ("QLinearConv", True): [read, read, "Conv", quantize],
        ("QLinearAdd", False): [read, "Add", quantize],
        ("MatMulIntegerToFloat", True): [read, read, "MatMul"],
        ("MatMulInteger", True): ["MatMulInteger"],
    }


def test_an_exact_device_is_exact(packed: Path, cases: Path) -> None:
    found = answer(packed / "answer.safetensors", cases)
    assert (found.device, found.provider, found.threads) == ("board", "CPUExecutionProvider", 1)
    assert (found.exact_share, found.first_difference, found.fault) == (1.0, None, "")
    assert found.seconds is not None and found.seconds > 0
    assert [item.output for item in found.outputs] == ["y", "z"]
    assert all(item.sqnr_db == item.expected_sqnr_db for item in found.outputs)


@pytest.mark.parametrize(
    ("case", "amount", "differing", "steps"),
    [
        (CONV, 1, 1, 1),
        (ADD, 1, 0, 1),
        (ADD, 2, 1, 2),
        # One more in a sum is a step of both scales, 0.09 times 0.02.
        (MATMUL, 0.0018, 1, 1),
        (MATMUL, 0.00001, 0, 0),
        (MATMUL, np.nan, 1, np.inf),
        (SUMS, 1, 1, 1),
    ],
)
def test_one_more_in_a_sum_is_found(
    cases: Path, change: Change, case: str, amount: float, differing: int, steps: float
) -> None:
    def add(tensors: dict[str, np.ndarray]) -> None:
        array = next(array for key, array in sorted(tensors.items()) if key.startswith(f"{case}:1:"))
        place = array.argmin()
        array.flat[place] += array.dtype.type(amount)

    found = answer(change(add), cases)
    (kernel,) = [item for item in found.kernels if item.name == case]
    assert (kernel.differing, kernel.exact) == (differing, not differing)
    assert kernel.steps == pytest.approx(steps, abs=0.1)
    assert found.first_difference == (kernel.node if differing else None)
    assert found.exact_share == (0.75 if differing else 1.0)


def test_a_case_that_a_provider_refuses_is_a_result(cases: Path, change: Change) -> None:
    def lose(tensors: dict[str, np.ndarray]) -> None:
        for key in [key for key in tensors if key.startswith((CONV, "model"))]:
            del tensors[key]

    found = answer(change(lose, faults=json.dumps({CONV: "no kernel", "model": "no memory"})), cases)
    assert (found.exact_share, found.outputs, found.fault) == (0.75, (), "no memory")
    assert found.kernels[0].fault == "no kernel"
    result = run_answers(
        change(lose, faults=json.dumps({CONV: "", "model": "no"})), cases, minimum={"sqnr_db": 1}
    )
    assert (result.verdict, result.gates[0].value) == ("fail", None)


def test_a_release_gates_on_many_devices(cases: Path, change: Change, tmp_path: Path) -> None:
    def differ(tensors: dict[str, np.ndarray]) -> None:
        tensors[next(key for key in tensors if key.startswith("kernel-004:0"))][0, 0] += 1

    change(name="one")
    change(differ, name="other")
    result = run_answers(tmp_path, cases, min_exact_kernels=1.0, minimum={"sqnr_db": 20})
    assert [(item.device, item.metric, item.passed) for item in result.gates] == [
        ("board (one)", "exact_kernels", True),
        ("board (one)", "sqnr_db", True),
        ("board (other)", "exact_kernels", False),
        ("board (other)", "sqnr_db", True),
    ]
    assert result.verdict == "fail"


def test_answers_that_are_refused_are_all_named(cases: Path, change: Change, tmp_path: Path) -> None:
    change(name="good")
    change(drop(CONV), name="less")
    change(name="other", id="0" * 64)
    with pytest.raises(
        AnswerError, match=r"less\.safetensors' lacks .*; answer '.*other.*' is to other cases"
    ):
        run_answers(tmp_path, cases)


def drop(prefix: str) -> Callable[[dict[str, np.ndarray]], None]:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        for key in [key for key in tensors if key.startswith(prefix)]:
            del tensors[key]

    return edit


def spoil(tensors: dict[str, np.ndarray]) -> None:
    tensors["model:0:y"][0, 0] = np.nan


def flatten(tensors: dict[str, np.ndarray]) -> None:
    tensors["model:0:y"] = tensors["model:0:y"].reshape(-1)


def invent(tensors: dict[str, np.ndarray]) -> None:
    tensors["kernel-099:0:y"] = np.zeros(1)


@pytest.mark.parametrize(
    ("edit", "texts", "kind", "message"),
    [
        (
            None,
            {"model_sha256": "0" * 64},
            OtherCasesError,
            "is of another version of the model: 000000000000",
        ),
        (None, {"id": "0" * 64}, OtherCasesError, "is to other cases of this model"),
        (None, {"format_version": "2"}, AnswerError, "is not an answer of version 1 of the runners"),
        (None, {"seconds": "{"}, AnswerError, "is damaged"),
        (None, {"faults": "[]"}, AnswerError, "is damaged"),
        (drop(CONV), {}, AnswerError, "lacks 1 of 5 cases: kernel-001"),
        (spoil, {}, AnswerError, "has NaN in output 'y', where none is expected"),
        (flatten, {}, AnswerError, r"has \[5\] for output 'y', expected \[1, 5\]"),
        (invent, {}, AnswerError, "has 'kernel-099:0:y', which is not a case"),
    ],
)
def test_an_answer_that_proves_nothing_is_refused(
    cases: Path, change: Change, edit: Any, texts: dict[str, str], kind: type[PtqError], message: str
) -> None:
    path = change(edit or (lambda _: None), **texts)
    with pytest.raises(kind, match=message) as refusal:
        run_answers(path, cases)
    assert refusal.value.hint


def test_a_file_that_was_cut_off_is_refused(packed: Path, cases: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    for size in (0, 100, -1):
        path.write_bytes((packed / "answer.safetensors").read_bytes()[:size])
        with pytest.raises(AnswerError, match="is damaged or cut off"):
            run_answers(path, cases)


def test_cases_that_were_changed_are_refused(packed: Path, cases: Path, tmp_path: Path) -> None:
    other = tmp_path / "cases"
    other.mkdir()
    (other / "kernels").mkdir()
    for path in cases.rglob("*.*"):
        (other / path.relative_to(cases)).write_bytes(path.read_bytes())
    manifest = (other / "manifest.json").read_text()
    (other / "kernels/kernel-001.onnx").write_bytes(b"")
    with pytest.raises(CasesError, match=r"does not have the hash that manifest\.json says"):
        run_answers(packed / "answer.safetensors", other)
    (other / "manifest.json").write_text(manifest.replace('"runs": 3', '"runs": 0', 1))
    with pytest.raises(CasesError, match=r"'cases\[0\]\.runs' is 0, expected at least 1"):
        run_answers(packed / "answer.safetensors", other)


def test_a_runner_says_which_file_was_changed(packed: Path, cases: Path, tmp_path: Path) -> None:
    other = tmp_path / "cases"
    (other / "kernels").mkdir(parents=True)
    for path in cases.rglob("*.*"):
        (other / path.relative_to(cases)).write_bytes(path.read_bytes())
    (other / "model.onnx").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-I", "run.py"], cwd=other, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "model.onnx was changed or cut off: copy the folder again" in done.stdout.splitlines()[0]
    assert answer(other / "answer.safetensors", cases).fault.startswith("model.onnx was changed")


def test_the_script_that_travels_is_for_old_pythons_and_needs_little() -> None:
    tree = ast.parse(Path(runner.__file__).read_text(encoding="utf-8"), feature_version=(3, 8))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [it.name for it in node.names]
        )
    }
    assert imported - sys.stdlib_module_names == {"numpy", "onnxruntime"}
