"""Freed blocks go back to the system where a limit of memory asks for it."""

import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
from ptq_cli.core.memory import give_back_freed_blocks, resident_bytes
{call}
del (large := [np.ones(2**21)])[:]  # Frees 16 MiB: glibc keeps blocks up to that size from here on.
blocks = [np.ones(2**18) for _ in range(32)]
pins = [np.ones(2**12) for _ in range(64)]  # They lie behind the blocks, so that the heap does not shrink.
before = resident_bytes()
del blocks[:]
print((before - resident_bytes()) >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's on Linux only")
@pytest.mark.parametrize(("call", "is_given_back"), [("give_back_freed_blocks()", True), ("", False)])
def test_freed_blocks_are_given_back(call: str, is_given_back: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(call=call)], capture_output=True, text=True, check=True
    )
    assert (int(done.stdout) >= 60) is is_given_back


SIGNAL_SCRIPT = """
import signal, time
from ptq_cli.core.process import end_as_interrupted, interrupt_status

class ExtensionFileLoader:
    def exec_module(self):
        signal.raise_signal(signal.SIGTERM)
        print("loaded")

end_as_interrupted()
try:
    ExtensionFileLoader().exec_module()
    time.sleep(3600)
except KeyboardInterrupt:
    raise SystemExit(interrupt_status())
"""


def test_a_signal_waits_until_a_library_is_loaded():
    done = subprocess.run([sys.executable, "-c", SIGNAL_SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (143, "loaded\n")
