"""Reading, gating and rendering a report need no library, or ``ptq gate`` would be slow in every CI job."""

import subprocess
import sys
from pathlib import Path

import pytest

REPORT = Path(__file__).parents[1] / "golden" / "report.json"
RUNTIMES = ["torch", "onnx", "onnxruntime", "onnx_ir"]
HEAVY = ["numpy", "torchmetrics", "jsonschema", *RUNTIMES]
GATE = "evaluation.document.report_document evaluation.decide_gates report.text.markdown report.text.summary"
ANALYSIS = "evaluation.document.analysis_document"


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (GATE, HEAVY),
        ("evaluation.runs.run_models", RUNTIMES[:3]),
        ("evaluation.metrics.metric_registry", RUNTIMES[:3]),
        (ANALYSIS, RUNTIMES),
    ],
)
def test_what_a_module_needs_is_light(modules: str, heavy: list[str]) -> None:
    imports = ", ".join(f"ptq_cli.{name}" for name in modules.split())
    assert _loaded(f"import sys, {imports}", heavy) == "[]"


@pytest.mark.parametrize("words", ["gate {} --max-drop top1=0.01 --min sqnr_db=20", "report {0} {0}"])
def test_deciding_and_comparing_load_neither_torch_nor_onnxruntime(words: str) -> None:
    command = words.format(REPORT).split()
    run = f"import sys; from ptq_cli.cli.main import run; assert run({command}) == 0"
    assert _loaded(run, [name for name in HEAVY if name != "jsonschema"]) == "[]"


def _loaded(code: str, heavy: list[str]) -> str:
    """Return which modules code loads, as the last line that it prints."""
    shown = f"{code}; print(sorted({set(heavy)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]
