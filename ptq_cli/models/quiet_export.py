"""PyTorch's exporters kept silent and on one thread."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

LOGGERS = ("torch", "torch.onnx", "torch._export", "torch.export", "onnxscript", "onnx_ir")


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporters inside the block; what goes wrong there still raises."""
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    sink = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        warnings.simplefilter("ignore")
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch compute on this thread alone inside the block, whatever it was set to.

    Its threads spin while they wait for one another. Where another process takes a core away from one of
    them, the others keep theirs busy with waiting, for each operator; two samples are not worth sharing.
    """
    import torch  # an ONNX model needs none of it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
