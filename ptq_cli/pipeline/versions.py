"""Which versions took part: they stand in every report."""

from importlib.metadata import version

DISTRIBUTIONS = ("ptq-cli", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "torch")


def library_versions() -> dict[str, str]:
    """Return the versions of ptq and of the libraries that decide what comes out.

    Example:
        >>> "onnxruntime" in library_versions()
        True
    """
    return {name: version(name) for name in DISTRIBUTIONS}
