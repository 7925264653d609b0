"""Kernels for a GPU: in numba's simulator where there is none, on the GPU, and compiled for one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.collectors.cuda_collectors import CudaCollectors
from ptq_cli.runtime.cuda import has_kernel_compiler
from tests.contracts.test_torch_collectors import ARRAYS, BAD, BEFORE, NORMAL, as_tensor, require_same
from tests.devices import require_or_skip

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("cases", ["not nightly", pytest.param("nightly", marks=pytest.mark.nightly)])
def test_in_the_simulator_the_bytes_are_those_of_a_processor(cases: str) -> None:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTEST_ADDOPTS": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    words += ["-q", "--import-mode=importlib", "-m", cases, "tests/simulated"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@pytest.fixture
def gpu() -> str:
    device = require_or_skip("cuda")
    if not has_kernel_compiler():
        pytest.skip("numba-cuda is not installed: pip install 'ptq-cli[cuda]'")
    return device


@pytest.mark.gpu
@pytest.mark.parametrize("method", COLLECTORS)
def test_on_a_gpu_the_bytes_are_those_of_numba(method: str, gpu: str) -> None:
    for before in BEFORE.values():
        host = {name: make_collector(method) for name in ARRAYS}
        cuda = CudaCollectors(list(ARRAYS), method)
        for batch in [dict.fromkeys(ARRAYS, np.array(before, np.float32)), ARRAYS]:
            assert all(host[name].update(array) for name, array in batch.items())
            assert cuda.feed({name: as_tensor(array, gpu) for name, array in batch.items()}) == []
        found = cuda.statistics()
        for name in ARRAYS:
            require_same(host[name].statistics(), found[name])


@pytest.mark.gpu
@pytest.mark.parametrize("method", COLLECTORS)
def test_on_a_gpu_what_is_not_finite_is_reported_and_not_added(method: str, gpu: str) -> None:
    cuda, host = CudaCollectors(list(BAD), method), make_collector(method)
    for _ in range(2):
        assert cuda.feed({name: as_tensor(array, gpu) for name, array in BAD.items()}) == list(BAD)
        assert cuda.feed(dict.fromkeys(BAD, as_tensor(NORMAL, gpu))) == [] and host.update(NORMAL)
    for found in cuda.statistics().values():
        require_same(host.statistics(), found)


@pytest.mark.gpu
def test_on_a_gpu_strides_and_many_values_are_counted_whole(gpu: str) -> None:
    values = np.resize(NORMAL, (3, 4096, 1031))
    cuda, host = CudaCollectors(["x", "y"], "histogram"), make_collector("histogram")
    for scale in (1e-20, 1.0, 1e3):
        array = values * np.float32(scale)
        assert host.update(array)
        tensor = as_tensor(array, gpu)
        assert cuda.feed({"x": tensor, "y": tensor.permute(2, 0, 1)}) == []
    for found in cuda.statistics().values():
        require_same(host.statistics(), found)


@pytest.mark.gpu
def test_on_a_gpu_memory_beside_the_tensors_does_not_grow_with_them(gpu: str) -> None:
    tensor = torch.randn(256 * 2**20, device=gpu)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    assert CudaCollectors(["x"], "histogram").feed({"x": tensor}) == []
    assert torch.cuda.max_memory_allocated() - held < 2**20


def test_kernels_compile_for_a_gpu_without_one() -> None:
    """The compiler needs no GPU; what it refuses, such as a comparison of tuples, would show on one alone."""
    pytest.importorskip("numba_cuda", reason="needs numba-cuda[cu13]")
    pytest.importorskip("cuda.bindings.nvvm", reason="needs numba-cuda[cu13]")
    words = [sys.executable, "-m", "tools.compile_kernels"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
