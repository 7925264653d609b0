"""What a page shows of a command's output, and what the command prints now: only figures may differ."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

LEFT_OUT = "…"
# Lines whose words depend on the machine, or are rows that the noise of a machine may order otherwise.
CHANGING = re.compile(
    r"worst_channel|times as fast|as fast as float|too fast|cannot tell|busy|takes? .* of its time"
    r"|GB|seconds|samples/s"
    r"|undecided|^\w+: \d+ of \d+ |^\s+\d+  "
)
PROGRESS = re.compile(r"^\w+: \d+( of \d+)? samples\b")  # Lines that only a slow machine prints
# Lines that say something else on few samples than on all.
FEW = re.compile(r"\b(pass|fail)|^to try|no cause|^  [\w./]+: '", re.IGNORECASE)


def masked(line: str) -> str:
    """Return a line without its figures and rules.

    Example:
        >>> masked("  sqnr_db   27.18 dB   26.23 to 28.16")
        'sqnr_db # dB # to #'
    """
    line = re.sub(r"-?\d[\d.,]*(e-?\d+)?", "#", line)
    return " ".join(re.sub(r"─+|\b[kM]B\b", "~", line).split())


def missing(shown: Iterable[str], printed: Iterable[str], *, is_cut: bool = False) -> list[str]:
    """Return the lines that a page shows and that were not printed, here perhaps on few samples of many.

    Example:
        >>> missing(["…", "wrote a.onnx (3 kB)", "pass"], ["wrote a.onnx (4 kB)"])
        ['pass']
    """
    there = {masked(line) for line in printed}
    return [
        line
        for line in shown
        if line.strip() not in ("", LEFT_OUT)
        and not CHANGING.search(line)
        and not (is_cut and FEW.search(line))
        and masked(line) not in there
    ]


def refreshed(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return what was printed; where the page leaves lines out, only those that it shows.

    Example:
        >>> refreshed(["…", "wrote a.onnx (3 kB)"], ["reading", "calibrate", "wrote a.onnx (4 kB)"])
        ['…', 'wrote a.onnx (4 kB)']
    """
    if LEFT_OUT not in shown:
        return [line.rstrip() for line in printed if not PROGRESS.match(line)]
    kept: list[str] = []
    at = 0
    for is_left_out, group in groupby(shown, key=lambda line: line == LEFT_OUT):
        if is_left_out:
            kept.append(LEFT_OUT)
            continue
        wanted = list(group)
        at = _find(wanted, printed, at)
        kept += [line.rstrip() for line in printed[at : at + len(wanted)]]
        at += len(wanted)
    return kept


def _find(wanted: Sequence[str], printed: Sequence[str], at: int) -> int:
    """Return where lines stand together in what was printed, from a line on."""
    for place in range(at, len(printed) - len(wanted) + 1):
        pairs = zip(wanted, printed[place:], strict=False)
        if all(masked(old) == masked(new) or _both_change(old, new) for old, new in pairs):
            return place
    raise ValueError("\n".join(["not printed:", *wanted, "but:", *printed[at:]]))


def _both_change(old: str, new: str) -> bool:
    return CHANGING.search(old) is not None and CHANGING.search(new) is not None
