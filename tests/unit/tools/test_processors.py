"""Emulated processors: what cannot be tried never passes. ``make test-processors`` tries them."""

from pathlib import Path

import pytest

from ptq_cli.evaluation.document.device_document import DeviceAnswer, DeviceOutput
from tools.processors import __main__ as command
from tools.processors import emulators


def test_what_cannot_be_tried_never_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(command, "packed_file", lambda name: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(["wasm"]) == 2
    printed = capsys.readouterr().out
    assert "wasm          cannot be tried here: it needs node, which is not installed" in printed
    assert printed.splitlines()[-1].endswith("not tried")


def test_a_runner_that_fails_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr(command, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(command, "packed_file", lambda name: tmp_path)
    assert command.main(["here"]) == 1
    assert "here          detector: failed: exit status 1\n" in capsys.readouterr().out


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["here", "--cases", str(tmp_path)])
    assert f"'{tmp_path}' is no folder of cases: it has no manifest.json" in capsys.readouterr().err


def test_outputs_may_lose_a_decibel() -> None:
    def result(sqnr_db: float) -> str:
        output = DeviceOutput(
            output="y",
            sqnr_db=sqnr_db,
            expected_sqnr_db=30.0,
            top1_agreement=None,
            expected_top1_agreement=None,
        )
        texts = dict.fromkeys(("file", "device", "machine", "system", "runtime", "provider"), "")
        device = DeviceAnswer(**texts, threads=1, seconds=None, kernels=(), outputs=(output,))
        return command.judge(device)[0]

    assert [result(sqnr_db) for sqnr_db in (29.1, 28.9)] == ["same", "DIFFERENT"]


def test_a_part_of_the_emulators_is_whole_or_not_there(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise emulators.UnavailableError("no network")

    with pytest.raises(emulators.UnavailableError):
        emulators.whole(tmp_path / "cache" / "part", fail)
    assert list((tmp_path / "cache").iterdir()) == []
