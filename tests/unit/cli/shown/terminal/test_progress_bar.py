"""Progress where stderr is no terminal: a line when a stage begins, then one every few seconds."""

import pytest

from ptq_cli.core.progress import Progress, RungProgress
from ptq_cli.terminal import progress_bar as progress
from ptq_cli.terminal.progress_bar import shown_progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which the test sets."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "resident_bytes", lambda: 123_000_000)
    return now


def test_a_line_comes_every_few_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress() as show:
        for second, done in enumerate((8, 16, 24, 32, 40, 48, 56, 64)):
            clock[0] = 101.0 + second
            show(Progress("calibrate", done, 64))
    assert capsys.readouterr() == ("", "calibrate: 40 of 64 samples, 8 samples/s, 3 s left, memory 123 MB\n")


def test_an_unknown_total_is_left_out(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress() as show:
        clock[0] += 6
        show(Progress("evaluate", 40, None))
    assert capsys.readouterr().err == "evaluate: 40 samples, memory 123 MB\n"


def test_what_an_earlier_calibration_did_is_no_speed(clock, capsys):
    with shown_progress() as show:
        show(Progress("calibrate", 900_000, 1_000_000))
        clock[0] += 10
        show(Progress("calibrate", 900_500, 1_000_000))
    assert (
        capsys.readouterr().err
        == "calibrate: 900500 of 1000000 samples, 50 samples/s, 33:10 min left, memory 123 MB\n"
    )


def test_the_beginning_of_a_stage_is_said_at_once(clock, capsys):
    with shown_progress() as show:
        show(Progress("reading model\x1b.pt", 0, None))
    assert capsys.readouterr().err == "reading model?.pt …\n"


@pytest.mark.parametrize("terminal", [False, True], ids=["a pipe", "a terminal"])
def test_a_note_is_a_line_of_its_own(monkeypatch, capsys, terminal):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: terminal)
    with shown_progress() as show:
        show(Progress("calibrate", 8, 64))
        show(Progress("calibrate", 0, None, note="no checkpoint\x1b was written"))
        show(Progress("calibrate", 16, 64))
    said = capsys.readouterr().err
    assert "note: no checkpoint? was written\n" in said
    assert ("16/64" in said) is terminal, "the bar is drawn again"


def test_a_rung_tells_the_time_left_by_its_work_once_enough_was_seen(clock, capsys):
    with shown_progress() as show:
        show(RungProgress("recover (round)", 0, None))
        for number, done in enumerate((10, 20, 30, 40), 1):  # Ten seconds each; the last layer is the most.
            clock[0] += 10
            at = {"layer": f"l{number}", "number": number, "layers": 5, "gain_db": number}
            show(RungProgress("recover (round)", done, 100, **at))
    assert capsys.readouterr().err.splitlines() == [
        "recover (round) …",
        "recover (round): 1 of 5 layers (l1), gain 1.0 dB, memory 123 MB",
        "recover (round): 2 of 5 layers (l2), gain 2.0 dB, memory 123 MB",
        "recover (round): 3 of 5 layers (l3), gain 3.0 dB, memory 123 MB",
        "recover (round): 4 of 5 layers (l4), gain 4.0 dB, 1:00 min left, memory 123 MB",
    ]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (80, "4 of 5 layers, gain 4.0 dB, 1:00 min left"),
        (90, "4 of 5 layers (net/{4}), gain 4.0 dB, 1:00 min left"),
        (160, "4 of 5 layers (net/{4}), gain 4.0 dB, 1:00 min left, memory 123 MB"),
    ],
)
def test_the_time_left_fits_beside_a_bar(clock, columns, words):
    display = progress._Bar()
    display.update(RungProgress("recover (round)", 0, None))
    assert display._bar is not None
    display._bar.dynamic_ncols = lambda _: (columns, 40)
    for number in range(1, 5):
        clock[0] += 10
        at = {"layer": f"net/{{{number}}}", "number": number, "layers": 5, "gain_db": number}
        display.update(RungProgress("recover (round)", 10 * number, 100, **at))
    drawn = str(display._bar)
    display.close()
    assert drawn.endswith(f"| {words}")
    assert len(drawn) <= columns
