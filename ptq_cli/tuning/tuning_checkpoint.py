"""Measurements of a tuning so far, so that it continues where it was interrupted."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from ptq_cli.core.documents import decode, encode, strict_json
from ptq_cli.core.errors import ReportError
from ptq_cli.core.files import write_text
from ptq_cli.core.read_files import read_file
from ptq_cli.setup.resumable import Tell, continued
from ptq_cli.tuning.candidate import CandidateMeasurement
from ptq_cli.tuning.layer_ranking import LayerRanking


@dataclass(kw_only=True)
class _Content:
    identity: dict[str, str]
    compared: dict[str, CandidateMeasurement] = field(default_factory=dict)
    proven: dict[str, CandidateMeasurement] = field(default_factory=dict)
    rankings: dict[str, LayerRanking] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class TuneCheckpoint(_Content):
    """Measurements by candidate, written to a file after each.

    Attributes:
        rankings: of the layers, by the key of the candidate that they were ranked for.
        written: SHA-256 of the candidates that were the best so far and were written.
        stored: whether it is written at all; several processes of torchrun store nothing.
    """

    path: Path
    stored: bool = True

    def save(self) -> None:
        """Write all of it, if it is stored."""
        if self.stored:
            content = _Content(**{item.name: getattr(self, item.name) for item in fields(_Content)})
            write_text(self.path, json.dumps(encode(content), allow_nan=False))


def continued_tuning(path: Path, identity: Mapping[str, str], tell: Tell) -> TuneCheckpoint:
    """Measurements of an earlier tuning, if it is of the same; otherwise none, and tell why."""

    def refusal(found: _Content) -> str:
        other = [name for name, value in identity.items() if found.identity.get(name) != value]
        return f"{other[0]} has changed" if other else ""

    def done(found: _Content) -> str:
        count = len(found.compared)
        return f"{count} candidate{'' if count == 1 else 's'}"

    content = continued(path, "tuning", _read, refusal, done, tell)
    if content is None:
        return TuneCheckpoint(path=path, identity=dict(identity))
    return TuneCheckpoint(path=path, **vars(content))


def _read(path: Path) -> _Content:
    try:
        content: _Content = decode(_Content, strict_json(read_file(path, "checkpoint of a tuning")), "")
    except (ValueError, RecursionError) as error:
        raise ReportError("it is damaged", hint="start again with --set run.restart=true") from error
    return content
