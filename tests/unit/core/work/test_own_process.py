"""What the command changes in its process: signals."""

import subprocess
import sys

SCRIPT = """
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
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (143, "loaded\n")
