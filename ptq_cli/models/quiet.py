"""PyTorch's loaders and exporters talk much: on stdout, on stderr, in warnings and in logs."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

LOGGERS = ("torch", "torch.onnx", "torch._export", "torch.export", "onnxscript", "onnx_ir")


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporters inside the block; what goes wrong there still raises.

    Example:
        >>> with quiet_exporter():
        ...     print("Applied 3 of general pattern rewrite rules.")
    """
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
