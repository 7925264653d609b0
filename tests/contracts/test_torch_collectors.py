"""PyTorch's counting against numba's: the same values give the same bytes, on the CPU and on a GPU."""

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.calibration.collect import make_torch_collector
from ptq_cli.collectors import torch_collectors
from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.collectors.torch_collectors import TorchHistogramCollector
from ptq_cli.core.errors import RuntimeFailedError, UnknownNameError
from tests.collected import saved
from tests.devices import require_or_skip
from tests.each_case import each_case

RNG = np.random.default_rng(29)
NORMAL = RNG.normal(size=6000).astype(np.float32)
LARGEST = np.finfo(np.float32).max
TINIEST = np.float32(2.0**-149)
ARRAYS = {
    "normal": NORMAL.reshape(6, 10, 100),
    "half zero": np.maximum(NORMAL, 0),
    "all zero": np.zeros(100, np.float32),
    "plus and minus zero": np.array([0.0, -0.0, 1.0, -0.0], np.float32),
    "minus zero alone": np.full(3, -0.0, np.float32),
    "constant": np.full(1000, 1.5, np.float32),
    "negative": -np.abs(NORMAL),
    "denormal": np.array([TINIEST, -TINIEST, TINIEST * 2000, 2.0**-127, 0.0], np.float32),
    "denormal beside normal": np.array([TINIEST, 2.0**-126, 3.0], np.float32),
    "tiny": np.ldexp(NORMAL, -118),
    "near the largest float": np.array([LARGEST, -LARGEST, LARGEST / 3, 1.0], np.float32),
    "every octave": np.ldexp(np.float32(-1.25), np.arange(-149, 128)).astype(np.float32),
    "every key": (np.arange(255 << 11, dtype=np.uint32) << 12).view(np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "0-d": np.float32(-2.5).reshape(()),
    "transposed": NORMAL.reshape(60, 100).T,
    "float16": NORMAL.astype(np.float16),
    "float16 denormal": np.arange(1024, dtype=np.uint16).view(np.float16),
    "bfloat16": NORMAL.astype(ml_dtypes.bfloat16),
    "float64": NORMAL.astype(np.float64) * np.pi,
    "float64 between two float32": np.nextafter(NORMAL.astype(np.float64), np.inf) * (1 + 2.0**-25),
    "float64 below float32": np.array([1e-300, 1.0, -3e-46]),
    "int8": np.array([-128, 0, 127], np.int8),
    "uint8": np.arange(256, dtype=np.uint8),
    "int32": RNG.integers(-(2**31), 2**31, 500, dtype=np.int32),
    "int64": np.append(RNG.integers(-(2**62), 2**62, 500), [0, 2**40 + 1, 2**24 + 1]),
    "uint16": np.array([0, 65535], np.uint16),
    "uint64": np.array([2**64 - 1, 2**63 + 2**39, 3], np.uint64),
    "bool": np.array([True, False, True]),
}
BEFORE = {
    "at first": [],
    "after zeros": [0.0, -0.0],
    "after a batch": [1e-3, 3.0],
    "after a larger one": [3e38, -1e-44],
    "after denormals": [1e-41],
}
BAD = {
    "nan": np.array([1.0, np.nan, 9.0], np.float32),
    "minus nan": np.array([0xFFC00000, 0], np.uint32).view(np.float32),
    "inf": np.array([np.inf], np.float32),
    "minus inf": np.array([[5.0], [-np.inf]], np.float32),
    "float16 inf": np.array([np.inf, 7.0], np.float16),
    "bfloat16 nan": np.array([np.nan, 7.0], ml_dtypes.bfloat16),
    "float64 beyond float32": np.array([1.0, 1e39]),
    "float64 nan": np.array([np.nan]),
    "0-d nan": np.array(np.nan, np.float32),
    "nan behind a new range": np.array([1e30, -1e30, np.nan], np.float32),
}


def as_tensor(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """The array's values, in its order: of bfloat16 too, which torch does not take from numpy."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(np.array(array)).to(device)


def on_both(method: str, arrays: Iterable[np.ndarray], device: str = "cpu") -> tuple[Any, Any]:
    host, other = make_collector(method), make_torch_collector(method)
    for array in arrays:
        assert host.update(array) is other.update(as_tensor(array, device)) is True
    return host.statistics(), other.statistics()


def require_same(host: TensorStatistics, other: TensorStatistics) -> None:
    assert other == host
    # Equal is not the same: -0.0 equals 0.0.
    assert other.minimum.tobytes() == host.minimum.tobytes()
    assert other.maximum.tobytes() == host.maximum.tobytes()
    assert saved(other) == saved(host)


def test_every_collector_is_there_twice() -> None:
    assert set(torch_collectors.TORCH_COLLECTORS) == set(COLLECTORS)
    with pytest.raises(UnknownNameError, match=r"'histgram' \(did you mean 'histogram'\?\)"):
        make_torch_collector("histgram")


@each_case("method", COLLECTORS)
@each_case("array", ARRAYS.values(), ids=ARRAYS)
def test_the_bytes_are_those_of_numba(method: str, array: np.ndarray) -> None:
    for before in BEFORE.values():
        first = [np.array(before, np.float32)] if before else []
        require_same(*on_both(method, [*first, array]))


@each_case("method", COLLECTORS)
@each_case("array", BAD.values(), ids=BAD)
@each_case("before", [0, 1], ids=["at first", "after a batch"])
def test_what_is_not_finite_is_reported_and_not_added(method: str, array: np.ndarray, before: int) -> None:
    collector, host = make_torch_collector(method), make_collector(method)
    for _ in range(before):
        assert collector.update(as_tensor(NORMAL)) and host.update(NORMAL)
    assert collector.update(as_tensor(array)) is False
    require_same(host.statistics(), collector.statistics())
    assert collector.update(as_tensor(NORMAL)) and host.update(NORMAL)
    require_same(host.statistics(), collector.statistics())


@each_case("size", [1, 255, 256, 257, 1024, 3001])
def test_parts_of_a_tensor_join_to_it(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_collectors, "PART_VALUES", 256)
    values = NORMAL[:size] * np.float32(1e-3)
    require_same(*on_both("histogram", [values, values * np.float32(2e-36), values * 50]))


def test_rising_and_falling_ranges_are_settled() -> None:
    scales = (1e-43, 1e-30, 0.0, 1e-38, 1.0, 1e-5, 1e20, 1e30, 1e-2)
    require_same(*on_both("histogram", [NORMAL * np.float32(scale) for scale in scales]))


def test_statistics_can_be_read_at_any_time_and_merge_with_numbas() -> None:
    collector = TorchHistogramCollector()
    collector.update(as_tensor(NORMAL))
    first = collector.statistics()
    assert collector.statistics() == first
    collector.update(as_tensor(NORMAL * 3))
    assert first.count == NORMAL.size and first.high == NORMAL.max()
    host, _ = on_both("histogram", [NORMAL, NORMAL, NORMAL * 3])
    assert first.merge(collector.statistics()) == host


@given(values=st.lists(st.floats(-1e38, 1e38), min_size=1))
def test_any_doubles_are_rounded_as_numpy_rounds_them(values: list[float]) -> None:
    require_same(*on_both("histogram", [np.array(values)]))


def test_a_full_memory_is_an_error_with_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(torch_collectors, "count_values", fail)
    with pytest.raises(
        RuntimeFailedError, match=r"the memory of 'cpu' is full: a tensor of \(2, 3\)"
    ) as caught:
        make_torch_collector("histogram").update(torch.ones(2, 3))
    assert "--set data.batch_size" in caught.value.hint


@pytest.fixture
def gpu() -> str:
    return require_or_skip("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("method", COLLECTORS)
def test_on_a_gpu_the_bytes_are_those_of_numba(method: str, gpu: str) -> None:
    for before in BEFORE.values():
        first = [np.array(before, np.float32)] if before else []
        for array in ARRAYS.values():
            require_same(*on_both(method, [*first, array], gpu))


@pytest.mark.gpu
def test_on_a_gpu_a_tensor_in_several_parts_is_counted_whole(gpu: str) -> None:
    values = np.resize(NORMAL, 2 * torch_collectors.PART_VALUES + 12_345)
    require_same(*on_both("histogram", [values, values * np.float32(1e-20), values * np.float32(1e3)], gpu))


@pytest.mark.gpu
@pytest.mark.parametrize("method", COLLECTORS)
def test_on_a_gpu_what_is_not_finite_is_reported_and_not_added(method: str, gpu: str) -> None:
    collector, host = make_torch_collector(method), make_collector(method)
    for array in BAD.values():
        assert collector.update(as_tensor(array, gpu)) is False
        assert collector.update(as_tensor(NORMAL, gpu)) and host.update(NORMAL)
        require_same(host.statistics(), collector.statistics())


@pytest.mark.gpu
@pytest.mark.parametrize("method", COLLECTORS)
def test_on_a_gpu_memory_beside_a_tensor_does_not_grow_with_it(method: str, gpu: str) -> None:
    needed = []
    for millions in (16, 256):
        tensor = torch.randn(millions * 2**20, device=gpu)
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        assert make_torch_collector(method).update(tensor)
        needed.append(torch.cuda.max_memory_allocated() - held)
        del tensor
    assert needed[1] < needed[0] + 2**20
