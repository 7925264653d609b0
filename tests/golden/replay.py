"""Replay recorded results of other implementations against ptq's functions.

python -m tests.golden.replay FOLDER

FOLDER holds ``index.json`` and the npz files that it names. Prints a line for each case that fails, one for
each reason why a case differs on purpose or is not covered, and a total. Exits with 1 if a case fails, with 2
if the folder cannot be read.
"""

import json
import sys
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tests.golden.calibrators import cases as calibrators
from tests.golden.centers import cases as centers
from tests.golden.fixed_point import cases as fixed_point
from tests.golden.quantizers import cases as quantizers
from tests.golden.straight_through import cases as straight_through
from tests.golden.verdicts import Arrays, Case, DiffersError, NotCoveredError, OnPurposeError

FAMILIES = {
    "calibrators.npz": calibrators,
    "qkeras.npz": fixed_point,
    "soft_to_hard.npz": centers,
    "spikingjelly.npz": straight_through,
    "tensor_quant.npz": quantizers,
}
HOLDS, ON_PURPOSE, NOT_COVERED, FAILS = "hold", "differ on purpose", "are not covered", "fail"


def main(arguments: Sequence[str]) -> int:
    """Replay a folder; return the exit status."""
    if len(arguments) != 1:
        print("usage: python -m tests.golden.replay FOLDER", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    folder = Path(arguments[0])
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        cases: list[Case] = index["cases"]
        files = {name: _load(folder, name) for name in dict.fromkeys(case["file"] for case in cases)}
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        print(f"{folder} is no folder of golden cases: {error}", file=sys.stderr)
        return 2
    counts: Counter[str] = Counter()
    reasons: Counter[tuple[str, str]] = Counter()
    for case in cases:
        verdict, reason = replay(case, files[case["file"]])
        counts[verdict] += 1
        if verdict == FAILS:
            print(f"FAIL {case['id']}: {reason}")
        elif reason:
            reasons[verdict, reason] += 1
    _print_total(len(cases), counts, reasons)
    return 1 if counts[FAILS] else 0


def _load(folder: Path, name: str) -> Arrays:
    with np.load(folder / Path(name).name, allow_pickle=False) as file:
        return dict(file)


def replay(case: Case, arrays: Arrays) -> tuple[str, str]:
    """Return a case's verdict, and the reason where it does not simply hold."""
    family = FAMILIES.get(case["file"])
    if family is None:
        return NOT_COVERED, Path(case["file"]).stem
    try:
        family.replay(case, arrays)
    except NotCoveredError as verdict:
        return NOT_COVERED, str(verdict)
    except OnPurposeError as verdict:
        return ON_PURPOSE, str(verdict)
    except DiffersError as verdict:
        return FAILS, str(verdict)
    except Exception as error:  # noqa: BLE001 - a case that ours cannot even run is one that fails
        return FAILS, f"{type(error).__name__}: {error}"
    return HOLDS, ""


def _print_total(total: int, counts: Counter[str], reasons: Counter[tuple[str, str]]) -> None:
    explained = {name: text for family in FAMILIES.values() for name, text in family.ON_PURPOSE.items()}
    for (verdict, reason), count in sorted(reasons.items()):
        meaning = f": {explained[reason]}" if verdict == ON_PURPOSE else ""
        print(f"{count} {verdict} ({reason}){meaning}")
    parts = [f"{counts[verdict]} {verdict}" for verdict in (HOLDS, ON_PURPOSE, NOT_COVERED, FAILS)]
    print(f"{total} cases: {', '.join(parts)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
