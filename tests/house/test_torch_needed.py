"""What works without torch is tested without it: nothing is left out by mistake."""

import subprocess
import sys
from pathlib import Path

from tests.torch_needed import ROOT, modules_that_need_torch

OF_PYTORCH = {
    "collectors/cuda_collectors.py",
    "collectors/torch_collectors.py",
    "evaluation/metrics/torch_metric.py",
    "models/loading/archive_safety.py",
    "models/loading/hub_source.py",
    "models/loading/torch_checkpoint.py",
    "models/loading/torch_export.py",
    "models/loading/torch_sources.py",
    "setup/distributed.py",
    "runtime/tapping/on_device.py",
}
ROOMS = ("calibdata", "collectors", "core", "placement", "plan", "qdq", "recipe", "recover", "report")
# Tests of data that a user's code gives as torch's tensors, and of sample models in PyTorch.
LEFT_OUT = {"calibdata/test_callable_dataset.py", "placement/test_weight_families.py"}


def left_out(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in modules_that_need_torch()
        if path.is_relative_to(folder)
    }


def test_only_what_is_of_pytorch_needs_it() -> None:
    found = left_out(ROOT / "ptq_cli")
    assert {name for name in found if not name.startswith("quantizers/")} == OF_PYTORCH


def test_the_tests_of_onnx_files_run_without_it() -> None:
    assert {name for name in left_out(ROOT / "tests" / "unit") if name.startswith(ROOMS)} == LEFT_OUT


def test_an_onnx_file_is_quantized_where_it_is_not_installed(tmp_path: Path) -> None:
    """None in ``sys.modules`` is a module that cannot be imported."""
    code = (
        "import sys; sys.modules.update(torch=None, torchmetrics=None)\n"
        "from ptq_cli.cli.main import run\n"
        "from tests.e2e.conftest import make_arrays, make_onnx, make_weights\n"
        "import numpy, onnx\n"
        "onnx.save(make_onnx(make_weights()), 'model.onnx'); numpy.savez('x.npz', **make_arrays(8, seed=1))\n"
        "words = 'quantize model.onnx --data x.npz --eval-data x.npz --prefer size'\n"
        "sys.exit(run(words.split()))"
    )
    variables = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ptq-run" / "model_int8.onnx").is_file()
