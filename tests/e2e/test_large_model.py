"""Models that are too large for one file, from end to end; a lower limit takes small ones the same way."""

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.runtime.session import Session
from tests.e2e.conftest import Ptq, Refuse
from tests.large_models import write_large

WIDTH, LAYERS = 64, 5
FLOAT, INT8 = "ptq-run/model.float.onnx", "ptq-run/model_int8.onnx"
CALIBRATE = "calibrate large.onnx --data x.npz"
QUANTIZE = "quantize large.onnx --prefer accuracy --data x.npz --eval-data x.npz --set run.evaluate=true"


@pytest.fixture
def large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with external data that is larger than one file may be."""
    shutil.rmtree(folder / "ptq-run")
    monkeypatch.setattr("ptq_cli.models.files.storing.LARGEST_BYTES", 30_000)
    monkeypatch.setattr("ptq_cli.models.files.storing.SMALLEST_EXTERNAL", 1_000)
    write_large(folder / "large.onnx", width=WIDTH, layers=LAYERS)
    np.savez(folder / "x.npz", x=np.random.default_rng(1).standard_normal((12, WIDTH)).astype(np.float32))
    return folder


def constants(path: str) -> dict[str, np.ndarray]:
    return {item.name: onnx.numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}


def run_model(path: str) -> np.ndarray:
    return Session(Path(path), threads=1).run({"x": np.load("x.npz")["x"]})[0]


def test_every_command_works_on_it_as_on_a_small_one(large, ptq, monkeypatch):
    for words in (
        CALIBRATE,
        "export",
        "evaluate --eval-data x.npz",
        "export --float large.onnx -o prepared.onnx",
    ):
        outcome = ptq(words)
        assert outcome.status == 0, outcome.err
    report = json.loads((large / "ptq-run/report.json").read_text())
    for path, kind in ((FLOAT, "float_model"), (INT8, "quantized_model")):
        onnx.checker.check_model(path, full_check=True)
        size = Path(path).stat().st_size + Path(f"{path}.data").stat().st_size
        assert report["model"][kind]["bytes"] == size
        assert report["model"][kind]["name"] == Path(path).name
    assert next(item["quantized_value"] for item in report["metrics"] if item["name"] == "sqnr_db") > 25
    assert Path("prepared.onnx.data").read_bytes() == Path(f"{FLOAT}.data").read_bytes()

    monkeypatch.undo()
    monkeypatch.chdir(large)
    assert ptq(f"{QUANTIZE} --run small").status == 0
    for path in (FLOAT, INT8):
        other = path.replace("ptq-run", "small")
        assert not Path(f"{other}.data").exists()
        one, two = constants(path), constants(other)
        assert one.keys() == two.keys()
        assert all(one[name].dtype == two[name].dtype for name in one)
        assert all(one[name].tobytes() == two[name].tobytes() for name in one)
        assert [node.op_type for node in onnx.load(path).graph.node] == [
            node.op_type for node in onnx.load(other).graph.node
        ]
        np.testing.assert_array_equal(run_model(path), run_model(other))


def test_a_shared_weight_is_stored_once_and_a_transposed_one_is_folded(large: Path, ptq: Ptq) -> None:
    assert ptq(QUANTIZE).status == 0
    floats, integers = onnx.load(FLOAT).graph, onnx.load(INT8).graph
    assert "Transpose" not in {node.op_type for node in floats.node}
    matrices = [item for item in integers.initializer if list(item.dims) == [WIDTH, WIDTH]]
    assert len(matrices) == LAYERS
    assert {item.data_type for item in matrices} == {onnx.TensorProto.INT8}
    assert all(item.data_location == onnx.TensorProto.DEFAULT for item in matrices)  # onnx.load has read them
    assert sum(node.op_type == "MatMul" for node in integers.node) == LAYERS + 1


def test_weights_alone_are_written_as_they_are_decided(large, ptq, monkeypatch):
    words = "quantize large.onnx --preset w4_block32"
    written: list[int] = []
    add = ConstantsFile.add
    monkeypatch.setattr(
        ConstantsFile,
        "add",
        lambda file, tensor, name: (written.append(tensor.nbytes), add(file, tensor, name))[1],
    )
    outcome = ptq(f"{words} --run one")
    assert "not counted here, because the runtime would load a copy of all the weights" in outcome.out
    # Beside the float model: no integers, which are in the file before the graph is.
    assert WIDTH * WIDTH // 2 not in written
    places = [
        {entry.key: entry.value for entry in item.external_data}
        for item in onnx.load("one/model_q4.onnx", load_external_data=False).graph.initializer
        if item.data_type == onnx.TensorProto.INT4
    ]
    # Two layers share a weight, each with a constant of its own in one place of the file.
    assert len(places) == LAYERS + 1
    assert len({place["offset"] for place in places}) == LAYERS
    assert Path("one/model_q4.onnx.data").stat().st_size == LAYERS * 4096 - 2048
    assert ptq("verify one/model_q4.onnx").status == 0
    monkeypatch.undo()
    monkeypatch.chdir(large)
    assert ptq(f"{words} --run two").status == 0
    one, two = constants("one/model_q4.onnx"), constants("two/model_q4.onnx")
    assert one.keys() == two.keys()
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)
    assert not list(large.rglob(".*"))


def test_weights_that_stay_floats_on_a_grid_are_kept_apart_too(large, ptq, monkeypatch):
    words = "quantize large.onnx --data x.npz --target tensorrt"
    assert ptq(f"{words} --run one").status == 0
    monkeypatch.undo()
    monkeypatch.chdir(large)
    assert ptq(f"{words} --run two").status == 0
    assert Path("one/model_int8.onnx.data").stat().st_size >= LAYERS * WIDTH * WIDTH * 4
    one, two = constants("one/model_int8.onnx"), constants("two/model_int8.onnx")
    assert one.keys() == two.keys()
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_a_model_given_by_pytorch_is_kept_so_too(folder, ptq, monkeypatch):
    monkeypatch.setattr("ptq_cli.models.files.storing.LARGEST_BYTES", 500)
    monkeypatch.setattr("ptq_cli.models.files.storing.SMALLEST_EXTERNAL", 100)
    outcome = ptq(
        "quantize model.pt --arch model.py:build --data calib.npz --eval-data eval.npz "
        "--set run.evaluate=true --run pt"
    )
    assert outcome.status == 0, outcome.err
    assert Path("pt/model.float.onnx.data").stat().st_size > 800
    assert Path("pt/model_int8.onnx.data").exists()


def test_shards_are_merged(large: Path, ptq: Ptq) -> None:
    for number in (1, 2):
        assert ptq(f"{CALIBRATE} --set data.batch_size=4 --shard {number}/2 --run run-{number}").status == 0
    assert ptq("merge run-1 run-2 --run all").status == 0
    assert Path("run-1/model.float.onnx.data").read_bytes() == Path("all/model.float.onnx.data").read_bytes()
    assert ptq("export --run all").status == 0
    assert not list(large.rglob(".*"))


def test_inspect_and_explain_look_at_it(large: Path, ptq: Ptq) -> None:
    assert "layer.1" in ptq("inspect large.onnx --all").out
    assert ptq(CALIBRATE).status == 0
    assert ptq("inspect").status == 0
    assert not list(large.rglob(".*"))


def test_what_proves_and_explains_a_run_reads_both_files(large: Path, ptq: Ptq) -> None:
    assert ptq(QUANTIZE).status == 0
    for words in (f"verify {INT8}", "analyze --eval-data x.npz", f"bench {FLOAT} {INT8} --seconds 0.05"):
        outcome = ptq(words)
        assert outcome.status == 0, outcome.err
    outcome = ptq("report")
    assert outcome.status == 0, outcome.err
    assert "No histograms" not in outcome.out + outcome.err


def test_cases_have_its_constants_apart(large, ptq, refuse, monkeypatch):
    def run_cases() -> str:
        words = [sys.executable, "cases/run.py"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout

    monkeypatch.setattr("ptq_cli.models.files.storing.LARGEST_BYTES", 10_000)  # The integers alone have more.
    assert ptq(QUANTIZE).status == 0
    outcome = ptq("verify --pack cases --samples 2")
    assert outcome.status == 0, outcome.err
    data = Path("cases/model.data")
    assert data.stat().st_size >= LAYERS * WIDTH * WIDTH
    assert run_cases().count("as expected") == LAYERS + 2
    gated = "verify --answers answer.safetensors cases --min-exact-kernels 1 --min sqnr_db=20"
    assert ptq(gated).out.splitlines()[-1] == "PASS"

    content = data.read_bytes()
    data.write_bytes(content[:-1])
    refuse(gated, "PTQ-CASES-001", "'cases/model.data' does not have the hash that manifest.json says")
    data.unlink()
    refuse(gated, "PTQ-FILE-001", "'cases/model.data' does not exist")
    data.write_bytes(bytes(len(content)))
    assert "model.data was changed or cut off" in run_cases().splitlines()[0]

    monkeypatch.undo()
    monkeypatch.chdir(large)
    assert ptq("verify --pack cases --samples 2").status == 0
    assert not data.exists() and not list(large.rglob(".*"))
    assert run_cases().count("as expected") == LAYERS + 2


def change(path: str, position: int) -> None:
    content = bytearray(Path(path).read_bytes())
    content[position] ^= 1
    Path(path).write_bytes(content)


def test_a_changed_number_of_the_float_model_is_noticed(large: Path, ptq: Ptq, refuse: Refuse) -> None:
    assert ptq(CALIBRATE).status == 0
    change(f"{FLOAT}.data", 20_000)
    refuse("export", "PTQ-CALIB-003", "is not the model that was calibrated")


def test_data_that_are_missing_or_short_are_named(large: Path, ptq: Ptq, refuse: Refuse) -> None:
    assert ptq(QUANTIZE).status == 0
    data = Path(f"{INT8}.data")
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    refuse("evaluate --eval-data x.npz", "PTQ-MODEL-001", "'model_int8.onnx.data' is too short: 1 bytes of")
    data.unlink()
    refuse(
        "evaluate --eval-data x.npz", "PTQ-MODEL-001", "the data file 'model_int8.onnx.data'", "is missing"
    )
    Path(f"{FLOAT}.data").unlink()
    refuse("export", "PTQ-MODEL-001", "the data file 'model.float.onnx.data'", "is missing")
    Path("large.onnx.data").unlink()
    refuse(CALIBRATE, "PTQ-MODEL-001", "the data file 'large.onnx.data'", "is missing")


def test_data_of_the_source_are_not_overwritten(large: Path, ptq: Ptq, refuse: Refuse) -> None:
    Path("large.onnx").rename("model2.onnx")
    refuse(
        "export --float model2.onnx -o large.onnx",
        "PTQ-USAGE-001",
        "'large.onnx.data' would overwrite data of the model that it is made from",
    )


def test_an_export_does_not_overwrite_data_of_the_source(large: Path, ptq: Ptq, refuse: Refuse) -> None:
    Path("large.onnx").rename("model2.onnx")
    assert ptq("calibrate model2.onnx --data x.npz").status == 0
    refuse("export -o large.onnx", "PTQ-USAGE-001", "'large.onnx.data' would overwrite data of the model")


def test_a_full_disk_is_told(large: Path, ptq: Ptq, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onnx_ir.ExternalTensor.tofile", full)
    refuse(
        "export --float large.onnx -o p.onnx",
        "PTQ-FILE-002",
        "cannot write 'p.onnx.data': no space left on device",
    )


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_two_and_a_half_gigabytes_are_quantized_in_little_more_memory(tmp_path: Path) -> None:
    width, layers = 8192, 10
    try:
        size = write_large(tmp_path / "large.onnx", width=width, layers=layers)
        assert size > 2.5e9
        np.savez(
            tmp_path / "x.npz", x=np.random.default_rng(1).standard_normal((4, width)).astype(np.float32)
        )
        commands = (
            "calibrate large.onnx --data x.npz --set data.batch_size=2",
            "export",
            "evaluate --eval-data x.npz",
        )
        for words in commands:
            peak = peak_of([*words.split()], tmp_path)
            assert peak <= 1.3 * size, f"{words}: {peak / size:.2f} times the model"
        report = json.loads((tmp_path / "ptq-run/report.json").read_text())
        assert next(item["quantized_value"] for item in report["metrics"] if item["name"] == "sqnr_db") > 20
        assert report["model"]["quantized_model"]["bytes"] < 0.26 * size
    finally:
        shutil.rmtree(tmp_path)


def peak_of(words: list[str], folder: Path) -> int:
    """Return the most memory that ptq took, by a process whose only child it is."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-c", code, sys.executable, "-m", "ptq_cli", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert resource.getpagesize()  # ru_maxrss is in KiB where there are pages of KiBs: Linux
    return int(done.stdout) * 1024
