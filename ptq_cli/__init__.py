"""Calibrate a trained model, quantize it, export ONNX with Q/DQ, and prove what that cost in accuracy.

The verbs are functions that return values: ``calibrate``, ``merge``, ``export``, ``evaluate``, ``quantize``,
``inspect`` and ``prepare``; ``verify`` proves what runs as integers, ``bench`` measures how fast, and
``analyze`` where accuracy is lost; ``show_calibration`` and ``explain`` look at what was measured,
``compare`` at two reports, and ``report_page`` writes a run's page again. They raise ``PtqError`` for input
that cannot be used. Importing this module imports neither PyTorch nor ONNX; the first call does.

Example:
    >>> import ptq_cli
    >>> result = ptq_cli.quantize("model.pt", max_drop={"top1": 0.01})  # doctest: +SKIP
    >>> result.evaluation.report.verdict  # doctest: +SKIP
    'pass'
"""

from typing import TYPE_CHECKING, Any

from ptq_cli.core.errors import PtqError

if TYPE_CHECKING:
    from ptq_cli.pipeline.api import (
        analyze,
        calibrate,
        compare,
        evaluate,
        explain,
        export,
        inspect,
        merge,
        prepare,
        quantize,
        report_page,
        show_calibration,
    )
    from ptq_cli.pipeline.proof_api import bench, verify

__all__ = [
    "PtqError",
    "__version__",
    "analyze",
    "bench",
    "calibrate",
    "compare",
    "evaluate",
    "explain",
    "export",
    "inspect",
    "merge",
    "prepare",
    "quantize",
    "report_page",
    "show_calibration",
    "verify",
]
__version__ = "0.1.0"
PROOFS = ("bench", "verify")
"""Their functions have a file of their own."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ptq_cli' has no attribute '{name}'")
    from ptq_cli.pipeline import api, proof_api

    return getattr(proof_api if name in PROOFS else api, name)
