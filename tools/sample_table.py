"""Measure the sample models again for ``README.md``: the terminal session and the table.

python -m tools.sample_table

The commands run on copies of the samples, so that no run directory is left behind and no path of this machine
is shown.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.text.summary import format_drop, format_value
from tools.marked import write_part
from tools.tables import code, table

ROOT = Path(__file__).parent.parent
SAMPLES: dict[str, tuple[str, Unit]] = {
    "cifar10_cnn": ("top1", "share"),
    "spoken_digits_transformer": ("top1", "share"),
    "shapes_detector": ("map50", "number"),
    "shakespeare_language_model": ("perplexity", "number"),
}
"""The metric by which each is judged, and its unit."""
SESSION_SAMPLE = "cifar10_cnn"
SESSION = (
    "ptq calibrate model.pt --method histogram",
    "ptq export --onnx",
    "ptq evaluate --max-drop top1=0.01",
    "ptq gate ptq-run/report.json --max-drop top1=0.001 --min sqnr_db=25",
    "echo $?",
)
HEADER = (
    "sample",
    "metric",
    "float",
    "int8",
    "drop",
    "SQNR",
    "float file",
    "int8 file",
    "int8 of float",
)
PROGRESS = re.compile(r"^\w+: \d+( of \d+)? samples\b")
"""Lines that only a slow machine prints."""


def main() -> None:
    """Write both parts of the README."""
    with tempfile.TemporaryDirectory() as folder:
        for name in SAMPLES:
            ignored = shutil.ignore_patterns("ptq-run", "__pycache__")
            shutil.copytree(ROOT / "sample_models" / name, Path(folder) / name, ignore=ignored)
        session = capture_session(Path(folder) / SESSION_SAMPLE)
        rows = [sample_row(name, Path(folder) / name) for name in SAMPLES]
    readme = ROOT / "README.md"
    write_part(readme, "session", f"```console\n{session}\n```")
    write_part(readme, "samples", table(HEADER, rows))
    print("wrote README.md")


def capture_session(folder: Path, commands: Sequence[str] = SESSION) -> str:
    """Return the text of a terminal session: each command after a ``$``, and its output.

    Raises:
        RuntimeError: a command ended with an exit status other than 0 (done) and 3 (a gate failed).
    """
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    lines, status = [], 0
    for command in commands:
        lines.append(f"$ {command}")
        if command == "echo $?":
            lines.append(str(status))
            continue
        result = subprocess.run(
            shlex.split(command),
            cwd=folder,
            env=environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        status = result.returncode
        if status not in (0, 3):
            raise RuntimeError(f"'{command}' ended with exit status {status}: {result.stdout}")
        shown = (line.rstrip() for line in result.stdout.splitlines())
        lines += [line for line in shown if not PROGRESS.match(line)]
    return "\n".join(lines)


def sample_row(name: str, folder: Path) -> list[str]:
    """Return the table row of one sample."""
    command = [sys.executable, "-m", "ptq_cli", "quantize", "--evaluate", "--json"]
    result = subprocess.run(command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE)
    report = json.loads(result.stdout)["report"]
    metrics: dict[str, dict[str, Any]] = {metric["name"]: metric for metric in report["metrics"]}
    (judge, unit), files = SAMPLES[name], report["model"]
    metric = metrics[judge]
    sizes = files["float_model"]["bytes"], files["quantized_model"]["bytes"]
    return [
        f"[{code(name)}](sample_models/{name}/README.md)",
        code(metric["name"]),
        format_value(metric["float_value"], unit),
        format_value(metric["quantized_value"], unit),
        format_drop(metric["drop"], unit),
        format_value(metrics["sqnr_db"]["quantized_value"], "decibel"),
        *map(format_bytes, sizes),
        f"{100 * sizes[1] / sizes[0]:.1f} %",
    ]


if __name__ == "__main__":
    main()
