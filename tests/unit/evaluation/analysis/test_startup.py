"""Whoever reads an analysis waits for neither ONNX Runtime nor PyTorch."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["analysis_document", "tensor_rows", "causes"])
def test_reading_an_analysis_loads_no_runtime(module: str) -> None:
    code = (
        f"import sys, ptq_cli.analyze.{module};"
        "print([name for name in ('onnx', 'onnx_ir', 'onnxruntime', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
