"""Take the screenshot of a comparison in ``docs/report.md``: several exports of the image sample.

python -m tools.draw_comparison

It needs Chromium with its driver, and runs the commands on a copy of the sample.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.draw_report import ROOT, SAMPLES, photograph, save

EXPORTS = {
    "int8": "",
    "4-bit": "--weight-bits 4",
    "4-bit-recovered": "--weight-bits 4 --recover round",
    "codebook": "--preset codebook_w4",
}
"""Flags of the exports that are compared, by the name of their file."""


def main() -> None:
    """Write the screenshot."""
    models = " ".join(f"--model {name}.onnx" for name in EXPORTS)
    reports = " ".join(f"ptq-run/{name}" for name in EXPORTS)
    commands = [
        "calibrate model.pt --method histogram",
        *(f"export --reset {flags} --output {name}.onnx" for name, flags in EXPORTS.items()),
        f"evaluate {models}",
        f"compare {reports} --page compare.html",
    ]
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "cifar10_cnn"
        ignored = shutil.ignore_patterns("ptq-run", "__pycache__")
        shutil.copytree(SAMPLES / sample.name, sample, ignore=ignored)
        for command in commands:
            subprocess.run([sys.executable, "-m", "ptq_cli", *command.split()], cwd=sample, check=True)
        shot = photograph(sample / "compare.html", "#charts", "#charts")
    save(shot, ROOT / "docs" / "figures" / "compare.png")


if __name__ == "__main__":
    main()
