"""Measure the sample models again for the table of ``README.md``.

python -m tools.sample_table

The commands run on copies of the samples, so that no run directory is left behind.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.report.text.numbers import format_drop, format_value
from tools.marked import write_part
from tools.pages.sample_folders import copy_sample
from tools.tables import code, table

ROOT = Path(__file__).parent.parent
# The metric by which each is judged, and its unit.
SAMPLES: dict[str, tuple[str, Unit]] = {
    "cifar10_cnn": ("top1", "share"),
    "spoken_digits_transformer": ("top1", "share"),
    "shapes_detector": ("map50", "number"),
    "shakespeare_language_model": ("perplexity", "number"),
}
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


def main() -> None:
    """Write the table into the README."""
    with tempfile.TemporaryDirectory() as folder:
        for name in SAMPLES:
            copy_sample(name, Path(folder) / name, whole=True)
        rows = [sample_row(name, Path(folder) / name) for name in SAMPLES]
    write_part(ROOT / "README.md", "samples", table(HEADER, rows))
    print("wrote README.md")


def sample_row(name: str, folder: Path) -> list[str]:
    """Return the table row of one sample."""
    command = [sys.executable, "-m", "ptq_cli", "quantize", "--set", "run.evaluate=true", "--json"]
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
