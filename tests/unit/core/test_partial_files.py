"""What a killed process was writing goes at the next run, and what a living one writes stays."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ptq_cli.core.files import PartialFolder, write_text
from ptq_cli.core.partial_files import PARTIAL_SUFFIX, partial_name

WRITER = """
import sys
from pathlib import Path

from ptq_cli.core.files import PartialFolder, atomic_write

folder = PartialFolder(Path(sys.argv[1]), "model.onnx")
(folder.path / "weights").write_text("half")
with atomic_write(Path(sys.argv[1]) / "a (1).json") as partial:
    partial.write_text("half")
    print("ready", flush=True)
    sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells which process lives")


def writer(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def partials(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(PARTIAL_SUFFIX))


@pytest.mark.parametrize(
    "write",
    [lambda folder: write_text(folder / "b.json", "new"), lambda folder: PartialFolder(folder, "b").remove()],
)
def test_files_of_a_killed_process_go_and_those_of_a_living_one_stay(write, tmp_path: Path):
    with writer(tmp_path) as living:
        kept = partials(tmp_path)
        with writer(tmp_path) as killed:
            killed.send_signal(signal.SIGKILL)
        assert len(partials(tmp_path)) == 4
        write(tmp_path)
        assert partials(tmp_path) == kept
        assert living.communicate("") == ("", None)
    assert partials(tmp_path) == []
    assert (tmp_path / "a (1).json").read_text() == "half"


def test_files_of_other_machines_boots_and_programs_stay(tmp_path: Path):
    own = partial_name("model.onnx")
    token, place, pid, started = own.split(".")[-3], *own.split(".")[-2].split("-")
    others = {
        f".model.onnx.{token}.{'0' * 8}-4194305-{started}.partial": "of another machine or boot",
        f".model.onnx.{token}.partial": "of an earlier version",
        ".mine.partial": "of the user",
        own: "of this process",
    }
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    (tmp_path / f".model.onnx.{token}.{place}-{pid}-1.partial").write_text(
        "of an earlier process of this number"
    )
    write_text(tmp_path / "b.json", "new")
    assert {path.name for path in partials(tmp_path)} == set(others)


def test_a_link_that_a_killed_process_left_goes_without_what_it_points_to(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.npy").write_text("mine")
    name = partial_name("model.onnx").rpartition("-")[0]
    (tmp_path / f"{name}-1.partial").symlink_to("data", target_is_directory=True)
    write_text(tmp_path / "b.json", "new")
    assert partials(tmp_path) == []
    assert (tmp_path / "data" / "x.npy").exists()
