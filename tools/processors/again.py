"""Make quantized files again where this runs, and print of each whether it has the same bytes.

python again.py RUN…: each a run directory with quantized files and their statements.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ptq_cli.core.errors import PtqError
from ptq_cli.receipts.run_rederive import run_rederive
from ptq_cli.setup.run_directory import RunDirectory


def main(words: Sequence[str]) -> int:
    """Make the files of run directories again, and return the exit status: 1 if one has other bytes."""
    differing = 0
    for run in map(Path, words):
        for statement in sorted(run.glob("*.intoto.json")):
            model = statement.with_name(f"{statement.name.removesuffix('.intoto.json')}.onnx")
            try:
                found = run_rederive(RunDirectory(run), model)
                text: str = found.verdict
                for item in found.differences[:3]:
                    text += f"; {item.kind} '{item.name}' {item.text}"
            except PtqError as error:
                text = f"failed: {error}"
            differing += text != "pass"
            print(f"{run.name}/{model.name}: {text}", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
