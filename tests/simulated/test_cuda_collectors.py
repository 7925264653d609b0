"""Kernels for a GPU in numba's simulator, thread by thread: the bytes are those of the loops for a processor.

``tests/contracts/test_cuda_collectors.py`` runs these in a process of their own, and the kernels on a GPU
where there is one.
"""

import ctypes
import os

import pytest

if os.environ.get("NUMBA_ENABLE_CUDASIM") != "1":
    pytest.skip("numba's simulator is asked for before numba is imported", allow_module_level=True)

import numpy as np
import torch
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from ptq_cli.collectors import cuda_collectors
from ptq_cli.collectors.calibration_file import load_calibration, statistics_digest
from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.collectors.cuda_collectors import CudaCollectors
from ptq_cli.runtime import cuda
from tests.contracts.test_torch_collectors import ARRAYS, BAD, NORMAL, as_tensor, require_same
from tests.devices import use_the_host_as_cuda
from tests.e2e.conftest import *  # noqa: F403 - fixtures

SMALL = {
    name: array if array.size <= 400 else array.reshape(-1)[:: array.size // 250]
    for name, array in ARRAYS.items()
}
NIGHTLY = pytest.mark.nightly
BEFORE = [
    pytest.param([1e-3, 3.0, -1e-9, 5e-4], id="after a batch"),
    pytest.param([], id="at first", marks=NIGHTLY),
    pytest.param([3e38, -1e-44], id="after a larger one", marks=NIGHTLY),
]


def view_of(memory):
    if isinstance(memory, torch.Tensor):
        return FakeCUDAArray(memory.numpy())
    words = ctypes.c_byte * (memory.count * memory.dtype.itemsize)
    return FakeCUDAArray(np.ctypeslib.as_array(words.from_address(memory.address)).view(memory.dtype))


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    """Let the simulator count the host's tensors, with three threads in each of up to eight blocks."""
    monkeypatch.setattr(cuda_collectors, "view_of", view_of)
    monkeypatch.setattr(cuda_collectors, "torch_device", lambda number: torch.device("cpu"))
    monkeypatch.setattr(cuda_collectors, "THREADS", 3)
    monkeypatch.setattr(cuda_collectors, "LEAST_SHARE", 2500)
    monkeypatch.setattr(cuda_collectors, "LEAST_BLOCKS", 5)
    monkeypatch.setattr(CudaCollectors, "_processors", lambda self: 2)


def on_both(method, batches, **settings):
    """Count batches of tensors with both, and return statistics by name of both and what was refused."""
    names = list(batches[0])
    host = {name: make_collector(method, **settings) for name in names}
    counted = CudaCollectors(names, method, **settings)
    refused = []
    for batch in batches:
        bad = [name for name, array in batch.items() if not host[name].update(array)]
        assert counted.feed({name: as_tensor(array) for name, array in batch.items()}) == bad
        refused += bad
    return {name: item.statistics() for name, item in host.items()}, counted.statistics(), refused


@pytest.mark.parametrize("method", COLLECTORS)
@pytest.mark.parametrize("before", BEFORE)
def test_the_bytes_are_those_of_numba(method, before):
    first = [dict.fromkeys(SMALL, np.array(before, np.float32))] if before else []
    host, counted, refused = on_both(method, [*first, SMALL])
    assert not refused
    for name in SMALL:
        require_same(host[name], counted[name])


@pytest.mark.parametrize("method", COLLECTORS)
@pytest.mark.parametrize("before", BEFORE)
def test_what_is_not_finite_is_reported_and_not_added(method, before):
    good = {"good": NORMAL[:50]}
    first = [dict.fromkeys([*BAD, "good"], np.array(before, np.float32))] if before else [good]
    host, counted, refused = on_both(method, [BAD | good, *first, dict.fromkeys(BAD, NORMAL[:9])])
    assert refused == list(BAD)
    for name in host:
        require_same(host[name], counted[name])


@pytest.mark.parametrize("method", COLLECTORS)
def test_what_may_be_infinite_is_counted_apart(method):
    host, counted, refused = on_both(method, [BAD, BAD], allow_nonfinite=True)
    assert not refused
    for name in BAD:
        require_same(host[name], counted[name])
        assert counted[name].nonfinite == host[name].nonfinite


def test_rising_and_falling_ranges_are_settled():
    scales = (1e-43, 1e-30, 0.0, 1e-38, 1.0, 1e-5, 3.0, 1e20, 1e30, 1e-2)
    host, counted, _ = on_both("histogram", [{"x": NORMAL[:300] * np.float32(scale)} for scale in scales])
    require_same(host["x"], counted["x"])


def test_tensors_may_be_missing_and_come_back_at_other_places():
    batches = [{"a": NORMAL[:9], "b": NORMAL[9:500]}, {"b": NORMAL[:70]}, {"a": NORMAL[3:40]}, {}]
    host, counted, _ = on_both("histogram", batches)
    for name in ("a", "b"):
        require_same(host[name], counted[name])
    assert CudaCollectors(["a"], "histogram").statistics()["a"].count == 0


def test_a_calibration_has_the_bytes_of_the_host(folder, ptq, monkeypatch):
    use_the_host_as_cuda(monkeypatch)
    monkeypatch.setattr(cuda, "has_kernel_compiler", lambda: True)
    digests = []
    for device in ("cpu", "cuda"):
        words = "calibrate model.onnx --data calib.npz --set data.batch_size=2 --set calibration.samples=4"
        assert ptq(f"{words} --set runtime.device={device} --run {device}").status == 0
        found = load_calibration(folder / device / "calibration.safetensors").statistics
        digests.append(statistics_digest(found))
    assert digests[0] == digests[1]
