"""Checkpoints of an evaluation: what the metrics hold so far, so that one that was killed continues.

It is a safetensors file with what the evaluation is of in its header. It is written to a temporary name and
renamed; where that fails, the last good one stays and the evaluation continues.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ptq_cli.core.errors import OutputFileError, ReportError
from ptq_cli.core.files import PARTIAL_SUFFIX, write_together
from ptq_cli.core.progress import Schedule
from ptq_cli.report.evaluation.evaluator import Evaluator
from ptq_cli.report.metrics.base import State

FORMAT = "ptq.evaluation"
FORMAT_VERSION = "1"

Identity = Mapping[str, str]
"""What an evaluation is of, by name: models, data, metrics. A checkpoint of another is ignored."""

Tell = Callable[[str], None]


class EvaluationCheckpoints:
    """Writes a checkpoint after a batch, once it is due.

    Args:
        path: of the checkpoint.
        identity: what the evaluation is of.
        every: seconds between checkpoints, at least.
        tell: is told that one could not be written.
    """

    def __init__(self, path: Path, identity: Identity, every: float, tell: Tell) -> None:
        self._path = path
        self._identity = identity
        self._tell = tell
        self._schedule = Schedule(every)

    def after_batch(self, evaluator: Evaluator) -> None:
        """Write a checkpoint if one is due; none of an evaluation that will be refused."""
        if evaluator.is_refused or not self._schedule.is_due():
            return
        with self._schedule.writing():
            try:
                write_together({self._path: _content(evaluator, self._identity)})
            except OutputFileError as error:
                self._tell(f"no checkpoint was written, the evaluation continues: {error.message}")


def continued(path: Path, identity: Identity, make: Callable[[], Evaluator], tell: Tell) -> Evaluator:
    """Return an evaluator that goes on from a checkpoint of this very evaluation, or a new one.

    Args:
        path: of the checkpoint, which need not be there.
        identity: what the evaluation is of.
        make: makes a new evaluator.
        tell: is told how many samples are not evaluated again, or why a checkpoint is ignored.
    """
    if not path.is_file():
        return make()
    evaluator = make()
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            reason = _difference(header, identity)
            if not reason:
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
                if header["sha256"] != _digest(state, header):
                    raise ValueError("its checksum is wrong")  # noqa: TRY301 - as what the parts raise
                evaluator.load_state(state, batches=int(header["batches"]), samples=int(header["samples"]))
    # A file from outside: what does not fit is a reason to begin anew, whatever it makes the parts raise.
    except (
        SafetensorError,
        OSError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        ReportError,
    ) as error:
        reason = f"it is damaged ({type(error).__name__})"
    if not reason:
        tell(
            f"continuing an earlier evaluation after {evaluator.samples} samples; "
            "--set run.restart=true starts again"
        )
        return evaluator
    tell(f"not continuing the earlier evaluation in '{path}', but starting again: {reason}")
    return make()


def discard_evaluation_checkpoint(path: Path) -> None:
    """Remove the checkpoint, and what a killed process left of one that it was writing."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        for leftover in path.parent.glob(f".{path.name}.*{PARTIAL_SUFFIX}"):
            leftover.unlink(missing_ok=True)


def _content(evaluator: Evaluator, identity: Identity) -> bytes:
    arrays = {key: np.asarray(array, order="C") for key, array in evaluator.state().items()}
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "batches": str(evaluator.batches),
        "samples": str(evaluator.samples),
        "identity": json.dumps(dict(identity), sort_keys=True),
    }
    header["sha256"] = _digest(arrays, header)
    content: bytes = save(arrays, metadata=header)
    return content


def _difference(header: Mapping[str, str], identity: Identity) -> str:
    """Say why a checkpoint is not of this evaluation; an empty text if it is."""
    if (header.get("format"), header.get("format_version")) != (FORMAT, FORMAT_VERSION):
        return "it is not a checkpoint of this version of ptq"
    found = json.loads(header.get("identity", "{}"))
    changed = [key for key in identity if found.get(key) != identity[key]]
    return f"{changed[0]} changed since" if changed else ""


def _digest(state: State, header: Mapping[str, str]) -> str:
    digest = hashlib.sha256(f"{header['batches']} {header['samples']}".encode())
    for key in sorted(state):
        digest.update(key.encode())
        digest.update(state[key].tobytes())
    return digest.hexdigest()
