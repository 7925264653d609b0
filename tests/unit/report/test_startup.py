"""Reading, gating and rendering a report need no library, or ``ptq gate`` would be slow in every CI job."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"numpy", "torch", "onnx", "onnxruntime", "onnx_ir", "torchmetrics"}
CODE = """
import sys
import ptq_cli.evaluation.document.report_document, ptq_cli.evaluation.decide_gates
import ptq_cli.report.text.markdown, ptq_cli.report.text.summary
print(sorted({"numpy", "torch", "onnx", "onnxruntime", "onnx_ir", "jsonschema"} & set(sys.modules)))
"""


def test_the_gate_imports_only_the_standard_library() -> None:
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("module", ["sample_axes", "metrics.metric_registry"])
def test_measuring_needs_neither_torch_nor_onnx(module: str) -> None:
    code = (
        f"import sys, ptq_cli.evaluation.{module};"
        "print({'torch', 'onnx', 'onnxruntime'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


@pytest.mark.parametrize(
    "words", ["gate {report} --max-drop top1=0.01 --min sqnr_db=20", "report {report} {report}"]
)
def test_deciding_and_comparing_load_neither_torch_nor_onnxruntime(words: str) -> None:
    report = Path(__file__).parents[2] / "golden" / "report.json"
    code = (
        "import sys; from ptq_cli.cli.main import run; status = run(sys.argv[1:]); "
        f"sys.exit(str([status, *sorted({HEAVY} & set(sys.modules))]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *words.format(report=report).split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr.splitlines()[-1] == "[0]"
