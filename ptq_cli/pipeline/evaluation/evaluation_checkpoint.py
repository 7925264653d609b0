"""Checkpoints of an evaluation: what the metrics hold so far, and of which evaluation."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ptq_cli.core.container import Arrays, Container
from ptq_cli.core.errors import EvaluationFileError, PtqError
from ptq_cli.core.files import write_together
from ptq_cli.core.read_files import read_file
from ptq_cli.evaluation.runs.evaluator import Evaluator
from ptq_cli.setup.resumable import Checkpoints, Tell, read_checkpoint

CONTAINER = Container(
    format="ptq.evaluation",
    version=2,
    error=EvaluationFileError,
    what="a checkpoint of an evaluation",
    made_by="`ptq evaluate` writes one while it runs",
    again="evaluate again with --set run.restart=true",
    is_flat=False,
)
WORK = "evaluation"

Identity = Mapping[str, str]
"""What an evaluation is of, by name: models, data, metrics. A checkpoint of another is ignored."""


def write_if_due(checkpoints: Checkpoints, evaluator: Evaluator, identity: Identity) -> None:
    """Write a checkpoint if one is due; none of an evaluation that will be refused."""
    if not evaluator.is_refused and checkpoints.is_due():
        checkpoints.write(lambda path: write_together({path: _content(evaluator, identity)}))


def continued(path: Path, identity: Identity, make: Callable[[], Evaluator], tell: Tell) -> Evaluator:
    """Return an evaluator that goes on from a checkpoint of this very evaluation, or a new one."""
    # Not the evaluator that a damaged state was loaded into: a part of it may be set already.
    evaluator = make()
    if read_checkpoint(path, WORK, _read, partial(_refusal, evaluator, identity), tell) is None:
        return make()
    tell(
        f"continuing an earlier evaluation after {evaluator.samples} samples; "
        "--set run.restart=true starts again"
    )
    return evaluator


def _content(evaluator: Evaluator, identity: Identity) -> bytes:
    arrays = {key: np.asarray(array, order="C") for key, array in evaluator.state().items()}
    header = {"batches": evaluator.batches, "samples": evaluator.samples, "identity": dict(identity)}
    return CONTAINER.content(header, arrays)


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    return CONTAINER.parse(
        read_file(path, CONTAINER.what), str(path), lambda header, arrays: (header, arrays)
    )


def _refusal(evaluator: Evaluator, identity: Identity, found: tuple[dict[str, Any], Arrays]) -> str:
    """Say why a checkpoint is not of this evaluation; an empty text if it is, and then load it."""
    header, arrays = found
    try:
        changed = [key for key in identity if header["identity"].get(key) != identity[key]]
        if not changed:
            evaluator.load_state(dict(arrays), batches=int(header["batches"]), samples=int(header["samples"]))
    # A file from outside: what does not fit is a reason to start over, whatever it makes the parts raise.
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, PtqError) as error:
        return f"it is damaged ({type(error).__name__})"
    return f"{changed[0]} changed since" if changed else ""
