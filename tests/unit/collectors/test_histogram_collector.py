"""The counting kernel against the definition, ``from_values``."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ptq_cli.collectors import histogram_collector as histogram
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.collectors.tensor_statistics import from_values
from ptq_cli.core.compiled import compiled
from tests.each_case import each_case

RNG = np.random.default_rng(11)
NORMAL = RNG.normal(size=5000).astype(np.float32)
LARGEST = np.finfo(np.float32).max
TINIEST = np.float32(2.0**-149)

ARRAYS = {
    "normal": NORMAL,
    "half zero": np.maximum(NORMAL, 0),
    "all zero": np.zeros(100, np.float32),
    "plus and minus zero": np.array([0.0, -0.0, 1.0, -0.0], np.float32),
    "constant": np.full(1000, 1.5, np.float32),
    "negative": -np.abs(NORMAL),
    "denormal": np.array([TINIEST, -TINIEST, TINIEST * 2000, 2.0**-127], np.float32),
    "denormal beside normal": np.array([TINIEST, 2.0**-126, 3.0], np.float32),
    "near the largest float": np.array([LARGEST, -LARGEST, LARGEST / 3, 1.0], np.float32),
    "every octave": np.ldexp(np.float32(1.25), np.arange(-149, 128)).astype(np.float32),
    "falling": np.ldexp(np.float32(1.0), np.arange(127, -127, -1)).astype(np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "0-d": np.float32(-2.5).reshape(()),
    "non-contiguous": NORMAL.reshape(50, 100)[::3, ::-7],
    "transposed": NORMAL.reshape(50, 100).T,
    "read-only": np.broadcast_to(np.float32(0.75), (3, 4)),
    "big-endian": NORMAL.astype(">f4"),
    "float16": NORMAL.astype(np.float16),
    "float64": NORMAL.astype(np.float64) * np.pi,
    "float64 below float32": np.array([1e-300, 1.0]),
    "int8": np.array([-128, 0, 127], np.int8),
    "int64": np.array([[-(2**62), 3], [0, 2**40 + 1]]),
    "bool": np.array([True, False, True]),
}


@each_case("array", [pytest.param(a, id=name) for name, a in ARRAYS.items() if np.size(a)])
@each_case("before", [[], [1e-3, 3.0]], ids=["at first", "after a batch"])
def test_large_array_counts_what_the_definition_counts(array, before):
    # A large array takes another way than a small one; its size is no multiple of anything.
    values = np.resize(np.asarray(array), 100_003)
    collector = HistogramCollector()
    assert collector.update(np.array(before, np.float32)) and collector.update(values)
    joined = np.append(np.array(before, np.float32), values.astype(np.float32))
    found = collector.statistics()
    assert found.histogram == from_values(joined)
    assert found.zeros == np.count_nonzero(joined == 0)


@each_case("size", [2**15 + offset for offset in range(-2, 5)])
def test_every_size_about_a_power_of_two_is_counted_whole(size):
    values = np.random.default_rng(size).normal(size=size).astype(np.float32)
    collector = HistogramCollector()
    assert collector.update(values) and collector.update(values)
    assert collector.statistics().histogram == from_values(np.concatenate([values, values]))


def test_threads_do_not_mix_their_tensors():
    arrays = [np.random.default_rng(seed).normal(size=60_000).astype(np.float32) for seed in range(8)]
    collectors = [HistogramCollector() for _ in arrays]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert all(pool.map(lambda c, a: c.update(a), collectors, arrays))
    for collector, array in zip(collectors, arrays, strict=True):
        assert collector.statistics().histogram == from_values(np.tile(array, 3))


def size(collector):
    return sum(item.nbytes for item in vars(collector).values() if isinstance(item, np.ndarray))


def test_two_thousand_tensors_fit_in_memory():
    # Values of every octave are the worst that a tensor can hold: both signs, 254 octaves.
    worst = HistogramCollector()
    every = ARRAYS["every octave"]
    worst.update(np.concatenate([every, -every]))
    usual = HistogramCollector()
    usual.update(np.random.default_rng(1).normal(size=200_000).astype(np.float32))
    assert size(usual) < 120_000  # So 2,000 take less than a quarter of a gigabyte.
    assert size(worst) < 160_000


def test_function_without_a_cache_folder_is_compiled_all_the_same():
    namespace = {}
    exec("def double(x):\n    return x + x", namespace)  # There is no file that a cache could stand beside.
    assert compiled(namespace["double"])(21) == 42


@each_case("before", [[], [1e-3, 3.0], [1e-38], [1e30]], ids=str)
@each_case("bad", [np.nan, -np.nan, np.inf, -np.inf], ids=str)
def test_what_was_counted_before_a_bad_value_is_taken_back(before, bad):
    for place in (0, 1500, 4999):
        require_taken_back(before, bad, place)


def require_taken_back(before, bad, place):
    collector = HistogramCollector()
    assert collector.update(np.array(before, np.float32))
    kept = collector.statistics()
    array = NORMAL.copy()
    array[place] = bad

    assert collector.update(array) is False

    assert collector.statistics() == kept
    assert collector.update(NORMAL)
    joined = np.append(NORMAL, np.array(before, np.float32))
    assert collector.statistics().histogram == from_values(joined)


def test_more_values_than_a_slot_holds(monkeypatch):
    monkeypatch.setattr(histogram, "_SLOT_LIMIT", 6000)
    collector = HistogramCollector()
    assert collector.update(NORMAL) and collector.update(NORMAL) and collector.update(np.tile(NORMAL, 3))
    assert not collector.update(np.append(np.tile(NORMAL, 3), np.nan))
    found = collector.statistics()
    assert found.histogram == from_values(np.tile(NORMAL, 5))
    assert found.count == 5 * NORMAL.size


def test_every_octave_may_be_the_largest():
    for exponent in range(-149, 128):
        values = np.ldexp(NORMAL / np.float32(4), exponent).astype(np.float32)
        collector = HistogramCollector()
        assert collector.update(values[:2500]) and collector.update(values[2500:])
        found = collector.statistics()
        assert found.histogram == from_values(values), exponent
        assert found.zeros == np.count_nonzero(values == 0), exponent


@pytest.mark.parametrize("order", [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]])
def test_minus_zero_leaves_no_trace(order):
    collector = MaxCollector()
    for value in order:
        collector.update(np.array([value], np.float32))
    found = collector.statistics()
    assert not np.signbit(found.minimum) and not np.signbit(found.maximum)


@compiled
def twice(values):
    return values + values


@compiled
def four_times(values):
    return twice(twice(values))


def test_one_calls_another_that_was_never_called():
    assert four_times(np.arange(3)).tolist() == [0, 4, 8]
    assert twice(np.arange(3)).tolist() == [0, 2, 4]


def test_threads_may_make_the_first_call_together():
    slow = compiled(lambda values: values.sum())
    found = []
    threads = [threading.Thread(target=lambda: found.append(slow(np.ones(5)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [5.0] * 4


def test_what_decides_from_saved_statistics_loads_no_compiler():
    code = "import sys, ptq_cli.pipeline.run_export; "
    code += "print({'networkx', 'numba', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
