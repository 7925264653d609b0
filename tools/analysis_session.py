"""Write the terminal session in ``docs/analyze.md`` again.

python -m tools.analysis_session

The commands run on a copy of the sample, on a terminal of 80 columns.
"""

import os
import shutil
import tempfile
from pathlib import Path

from tools.marked import write_part
from tools.sample_table import capture_session

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "analyze.md"
SAMPLE = ROOT / "sample_models" / "cifar10_cnn"
SESSION = (
    "ptq quantize model.pt --weight-bits 4",
    "ptq analyze --top 5",
    "ptq export --weight-bits 8",
    "ptq analyze --top 5",
)


def main() -> None:
    """Write the session into the page."""
    os.environ["COLUMNS"] = "80"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / SAMPLE.name
        shutil.copytree(SAMPLE, copy, ignore=shutil.ignore_patterns("ptq-run", "__pycache__"))
        session = capture_session(copy, SESSION)
    write_part(PAGE, "analysis", f"```console\n{session}\n```")
    print("wrote docs/analyze.md")


if __name__ == "__main__":
    main()
