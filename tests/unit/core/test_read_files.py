import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ptq_cli.core.errors import InputFileError
from ptq_cli.core.read_files import read_file, require_file, sha256_file, sha256_text

needs_permissions = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read anything"
)


@pytest.fixture
def earlier(tmp_path):
    """A folder with an output of an earlier run."""
    path = tmp_path / "report.json"
    path.write_text("earlier")
    return path


class TestRequireFile:
    def test_returns_the_path(self, earlier):
        assert require_file(earlier, "report") == earlier

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


class TestReadFile:
    def test_returns_the_content(self, earlier):
        assert read_file(earlier, "report") == earlier.read_bytes()

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
