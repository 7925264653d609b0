"""Whether the process is the command ``ptq``: only then may ptq change what a library prints everywhere."""

_OWN = [False]


def claim_process() -> None:
    """Say that this process is the command ``ptq``, and no program that imports ``ptq_cli``."""
    _OWN[0] = True


def is_own_process() -> bool:
    """Return whether ``claim_process`` was called."""
    return _OWN[0]
