"""Which versions took part: they stand in every report."""

from importlib.metadata import PackageNotFoundError, version

from ptq_cli import __version__

OWN = "ptq-cli"
DISTRIBUTIONS = ("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "torch", "torchmetrics")
IN_PLACE_OF = {"onnxruntime": "onnxruntime-gpu"}
"""What may be installed instead, under another name."""


def library_versions() -> dict[str, str]:
    """Return the versions of ptq and of the libraries that decide what comes out.

    Example:
        >>> "onnxruntime" in library_versions()
        True
    """
    # ptq's is that of the code that runs: a checkout on PYTHONPATH may hide one that is installed.
    return {OWN: __version__} | {name: _version(name) for name in DISTRIBUTIONS}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        if name not in IN_PLACE_OF:
            raise
        return version(IN_PLACE_OF[name])
