"""Whether the process is the command ``ptq``: only then may ptq change what a library prints everywhere."""

import logging

_OWN = [False]
LIBRARIES = ("onnx_ir", "onnxscript")
"""What they log of a damaged model would reach the terminal with the model's names as they are."""


def claim_process() -> None:
    """Say that this process is the command ``ptq``, and no program that imports ``ptq_cli``."""
    if not _OWN[0]:
        for name in LIBRARIES:
            # Without a handler of anybody, logging prints warnings itself.
            logging.getLogger(name).addHandler(logging.NullHandler())
    _OWN[0] = True


def is_own_process() -> bool:
    """Return whether ``claim_process`` was called."""
    return _OWN[0]
