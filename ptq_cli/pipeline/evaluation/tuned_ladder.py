"""The ladder of the tuning that chose a model, if there was one."""

from ptq_cli.core.documents import parse_document
from ptq_cli.core.errors import ReportError
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.run_directory import RunDirectory
from ptq_cli.report.document.measurement import Ladder


def tuned_ladder(run: RunDirectory, model: StoredModel) -> Ladder | None:
    """Return what ``ptq tune`` tried before it chose this very model.

    Args:
        run: whose ``tune.json`` is read.
        model: the quantized model.

    Edge case:
        None without a ``tune.json``, or if it is of another model, damaged, or of another version: the model
        is evaluated all the same.
    """
    try:
        found = parse_document(Ladder, run.tuning.read_bytes())
    except (OSError, ReportError):
        return None
    return found if found.model_sha256 == model.sha256 else None
