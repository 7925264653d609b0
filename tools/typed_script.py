"""A user's script: mypy checks it here, and ``tools/try_release.py`` against the installed package."""

from pathlib import Path

import ptq_cli
from ptq_cli import PtqError


def gated(model: Path, data: Path) -> Path | None:
    """Return the quantized model, or None if it lost too much accuracy."""
    try:
        result = ptq_cli.quantize(model, data=str(data), max_drop={"top1": 0.01}, evaluate=True)
    except PtqError as error:
        print(error.code, error.hint)
        raise
    if result.evaluation is None:
        return None
    report = result.evaluation.report
    drops: dict[str, float | None] = {metric.name: metric.drop for metric in report.metrics}
    print(ptq_cli.__version__, drops)
    output: Path = result.export.output
    return output if report.verdict == "pass" else None
