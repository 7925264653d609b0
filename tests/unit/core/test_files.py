"""What a killed process was writing goes at the next run, and what a living one writes stays."""

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ptq_cli.core.errors import InputFileError, OutputFileError
from ptq_cli.core.files import (
    PARTIAL_SUFFIX,
    PartialFolder,
    atomic_write,
    partial_name,
    write_text,
    write_together,
)
from ptq_cli.core.read_files import read_file, require_file, sha256_file, sha256_text

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


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def earlier(tmp_path):
    """A folder with an output of an earlier run."""
    path = tmp_path / "report.json"
    path.write_text("earlier")
    return path


class TestAtomicWrite:
    def test_replaces_the_earlier_file(self, earlier):
        write_text(earlier, "naïve")
        assert earlier.read_text(encoding="utf-8") == "naïve"
        assert names(earlier.parent) == ["report.json"]

    def test_earlier_file_stands_until_the_block_ends(self, earlier):
        with atomic_write(earlier) as partial:
            partial.write_text("new")
            assert earlier.read_text() == "earlier"
            assert partial.parent == earlier.parent
        assert earlier.read_text() == "new"

    @pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
    def test_failure_in_the_block_leaves_no_trace(self, earlier, failure):
        with pytest.raises(failure), atomic_write(earlier) as partial:
            partial.write_text("half")
            raise failure
        assert earlier.read_text() == "earlier"
        assert names(earlier.parent) == ["report.json"]

    def test_full_disk_is_an_output_error(self, earlier):
        with pytest.raises(OutputFileError) as caught, atomic_write(earlier) as partial:
            partial.write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert caught.value.message == f"cannot write '{earlier}': no space left on device"
        assert earlier.read_text() == "earlier"
        assert names(earlier.parent) == ["report.json"]

    def test_target_that_is_a_folder(self, tmp_path):
        with pytest.raises(OutputFileError, match="it is a folder"):
            write_text(tmp_path, "x")
        assert names(tmp_path) == []

    def test_block_that_writes_nothing(self, earlier):
        with pytest.raises(OutputFileError, match="no such file"), atomic_write(earlier):
            pass
        assert earlier.read_text() == "earlier"

    def test_rename_that_is_denied(self, earlier, monkeypatch):
        def denied(self, target):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "replace", denied)
        with pytest.raises(OutputFileError, match="permission denied"):
            write_text(earlier, "new")
        assert earlier.read_text() == "earlier"
        assert names(earlier.parent) == ["report.json"]


class TestWhatIsReplaced:
    def test_a_url_is_not_a_folder_to_make(self, tmp_path):
        with pytest.raises(OutputFileError, match=r"cannot write 's3://bucket/a.txt': it is a URL"):
            write_text(tmp_path / "s3://bucket/a.txt", "x")
        assert names(tmp_path) == []
        (tmp_path / "s3:").mkdir()
        write_text(tmp_path / "s3:" / "a.txt", "x")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("pipe")
        for name in ("pipe", "link"):
            with pytest.raises(OutputFileError, match=f"cannot write '.*{name}': it is not a regular file"):
                write_text(tmp_path / name, "x")
        assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
        assert names(tmp_path) == ["link", "pipe"]

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs the superuser")
    def test_a_device_is_refused(self, tmp_path):
        null = tmp_path / "null"
        try:
            os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("devices cannot be made here")
        with pytest.raises(OutputFileError, match="it is not a regular file"):
            write_text(null, "x")
        assert stat.S_ISCHR(null.lstat().st_mode)

    def test_the_null_device_is_refused(self):
        with pytest.raises(OutputFileError, match="it is not a regular file"):
            write_text(Path(os.devnull), "x")

    def test_a_link_stays_and_its_file_is_replaced(self, earlier):
        there = earlier.parent / "there"
        there.mkdir()
        kept = earlier.rename(there / "kept.json")
        earlier.symlink_to("there/kept.json")
        with atomic_write(earlier) as partial:
            partial.write_text("new")
            assert partial.parent == there
        assert earlier.readlink() == Path("there/kept.json")
        assert kept.read_text() == "new"
        assert not kept.is_symlink()
        assert names(there) == ["kept.json"]

    def test_a_link_to_nothing_makes_its_file(self, tmp_path):
        (tmp_path / "link").symlink_to("new/file")
        write_text(tmp_path / "link", "x")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "new" / "file").read_text() == "x"

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755, 0o400])
    def test_permissions_are_kept(self, earlier, mode):
        earlier.chmod(mode)
        write_text(earlier, "new")
        write_together({earlier: b"newer"})
        assert stat.S_IMODE(earlier.stat().st_mode) == mode
        assert earlier.read_text() == "newer"

    def test_nobody_else_reads_a_private_file_while_it_is_written(self, earlier, monkeypatch):
        earlier.chmod(0o600)
        modes = []
        write_bytes = Path.write_bytes

        def watched(self, data):
            size = write_bytes(self, data)
            modes.append(stat.S_IMODE(self.stat().st_mode))
            return size

        monkeypatch.setattr(Path, "write_bytes", watched)
        write_together({earlier: b"secret"})
        assert modes == [0o600]

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs the superuser")
    def test_the_owner_is_kept(self, earlier):
        os.chown(earlier, 65534, 65534)
        write_text(earlier, "new")
        assert (earlier.stat().st_uid, earlier.stat().st_gid) == (65534, 65534)

    def test_a_moved_file_keeps_the_permissions_of_the_earlier_one(self, earlier):
        earlier.chmod(0o600)
        folder = PartialFolder(earlier.parent, earlier.name)
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        (folder.path / "data").write_bytes(b"large")
        write_together({earlier: folder.path / "data"})
        assert stat.S_IMODE(earlier.stat().st_mode) == 0o600
        assert earlier.read_bytes() == b"large"

    @pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system")
    def test_a_moved_file_may_end_on_another_file_system(self, earlier):
        elsewhere = PartialFolder(Path("/dev/shm"), "ptq-test")
        (elsewhere.path / "kept").write_text("earlier")
        earlier.unlink()
        earlier.symlink_to(elsewhere.path / "kept")
        folder = PartialFolder(earlier.parent, earlier.name)
        (folder.path / "data").write_bytes(b"large")
        write_together({earlier: folder.path / "data"})
        assert (elsewhere.path / "kept").read_bytes() == b"large"
        assert earlier.is_symlink()


INTERRUPTED = """
import signal, sys
from pathlib import Path
from ptq_cli.core.files import write_together

folder, write_bytes = Path(sys.argv[1]), Path.write_bytes

def write_and_end(path, content):
    signal.raise_signal(signal.SIGTERM)
    return write_bytes(path, content)

signal.signal(signal.SIGTERM, lambda *_: print(sorted(entry.name for entry in folder.iterdir())))
Path.write_bytes = write_and_end
write_together({folder / "a": b"1", folder / "b": b"2"})
"""


def test_sigterm_waits_until_all_files_are_written(tmp_path):
    """In a process of its own: what other tests left in this one could end it."""
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['a', 'b']\n"


class TestRequireFile:
    def test_missing(self, tmp_path):
        with pytest.raises(InputFileError, match=r"model '.*gone.pt' does not exist"):
            require_file(tmp_path / "gone.pt", "model")

    def test_folder(self, tmp_path):
        with pytest.raises(InputFileError, match="is a folder, expected a file"):
            require_file(tmp_path, "model")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path / "pipe", Path(os.devnull)):
            with pytest.raises(InputFileError, match=rf"model '{path}' is not a regular file"):
                require_file(path, "model")

    def test_a_url_is_named_as_it_was_typed(self, tmp_path):
        for path in (Path("https://host/model.onnx"), tmp_path / "https://host/model.onnx"):
            with pytest.raises(InputFileError, match=r"model 'https://host/model.onnx' is a URL"):
                require_file(path, "model")

    def test_path_that_may_not_be_looked_at(self, earlier, monkeypatch):
        def denied(self, **options):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "is_dir", denied)
        with pytest.raises(InputFileError, match="cannot be read: permission denied"):
            require_file(earlier, "report")


class TestReadFile:
    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_is_read_as_a_shell_gives_it(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with ThreadPoolExecutor() as pool:
            pool.submit((tmp_path / "pipe").write_bytes, b"piped")
            assert read_file(tmp_path / "pipe", "report") == b"piped"

    def test_a_disk_that_fails(self, earlier, monkeypatch):
        def broken(self):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(Path, "read_bytes", broken)
        with pytest.raises(InputFileError, match=r"report '.*' cannot be read: input/output error"):
            read_file(earlier, "report")


def test_hashes_agree(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("é".encode())
    assert sha256_file(path) == sha256_text("é") == hashlib.sha256("é".encode()).hexdigest()
