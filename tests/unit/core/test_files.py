import errno
import hashlib
import os
from pathlib import Path

import pytest

from ptq_cli.core.errors import InputFileError, OutputFileError
from ptq_cli.core.files import atomic_write, require_file, sha256_file, sha256_text, write_text

needs_permissions = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere"
)


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

    def test_makes_the_folder(self, tmp_path):
        write_text(tmp_path / "a" / "b.txt", "x")
        assert (tmp_path / "a" / "b.txt").read_text() == "x"

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

    def test_parent_that_is_a_file(self, earlier):
        with pytest.raises(OutputFileError, match="cannot write"):
            write_text(earlier / "inner.txt", "x")
        assert earlier.read_text() == "earlier"

    def test_block_that_writes_nothing(self, earlier):
        with pytest.raises(OutputFileError, match="no such file"), atomic_write(earlier):
            pass
        assert earlier.read_text() == "earlier"

    def test_name_that_is_too_long(self, tmp_path):
        with pytest.raises(OutputFileError, match="file name too long"):
            write_text(tmp_path / ("n" * 300), "x")

    def test_rename_that_is_denied(self, earlier, monkeypatch):
        def denied(self, target):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "replace", denied)
        with pytest.raises(OutputFileError, match="permission denied"):
            write_text(earlier, "new")
        assert earlier.read_text() == "earlier"
        assert names(earlier.parent) == ["report.json"]

    @needs_permissions
    def test_folder_that_may_not_be_written(self, earlier):
        earlier.parent.chmod(0o500)
        try:
            with pytest.raises(OutputFileError, match="permission denied"):
                write_text(earlier, "new")
        finally:
            earlier.parent.chmod(0o700)
        assert earlier.read_text() == "earlier"
        assert names(earlier.parent) == ["report.json"]


class TestRequireFile:
    def test_returns_the_path(self, earlier):
        assert require_file(earlier, "report") == earlier

    def test_missing(self, tmp_path):
        with pytest.raises(InputFileError, match=r"model '.*gone.pt' does not exist"):
            require_file(tmp_path / "gone.pt", "model")

    def test_folder(self, tmp_path):
        with pytest.raises(InputFileError, match="is a folder, expected a file"):
            require_file(tmp_path, "model")

    def test_name_that_is_too_long(self, tmp_path):
        with pytest.raises(InputFileError, match=r"^PTQ-FILE-001: model .*$|too long|does not exist"):
            require_file(tmp_path / ("n" * 300), "model")

    @needs_permissions
    def test_unreadable(self, earlier):
        earlier.chmod(0)
        with pytest.raises(InputFileError, match="cannot be read"):
            require_file(earlier, "report")

    def test_path_that_may_not_be_looked_at(self, earlier, monkeypatch):
        def denied(self, **options):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "is_dir", denied)
        with pytest.raises(InputFileError, match="cannot be read: permission denied"):
            require_file(earlier, "report")


def test_hashes_agree(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("é".encode())
    assert sha256_file(path) == sha256_text("é") == hashlib.sha256("é".encode()).hexdigest()
