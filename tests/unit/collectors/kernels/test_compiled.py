"""Functions are compiled with their first call, each with those that it calls."""

import subprocess
import sys
import threading

import numpy as np

from ptq_cli.collectors.host_kernels import compiled


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
