"""Calibrate a trained model, quantize it, export ONNX with Q/DQ, and prove what that cost in accuracy.

The verbs are functions that return values: ``calibrate``, ``merge``, ``export``, ``evaluate``, ``quantize``,
``tune``, ``inspect`` and ``prepare``; ``verify`` proves what runs as integers, ``bench`` measures how fast,
``analyze`` where accuracy is lost, and ``drift`` whether new data are as those of the calibration;
``pack_cases`` and ``compare_answers`` prove it on other devices;
``rederive`` makes a file again from what its statement names;
``evaluate_shard`` and ``merge_evaluation`` share out an evaluation;
``quantize_folder`` quantizes all models of one export;
``show_calibration`` and ``explain`` look at what was measured, ``compare`` at two reports, and
``report_page`` writes a run's page again, ``model_card`` a card for the hub. They raise ``PtqError`` for
input that cannot be used. Importing this module imports neither PyTorch nor ONNX; the first call does.

Example:
    >>> import ptq_cli
    >>> result = ptq_cli.quantize("model.pt", max_drop={"top1": 0.01})  # doctest: +SKIP
    >>> result.evaluation.report.verdict  # doctest: +SKIP
    'pass'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
__all__ += ["__version__"]
