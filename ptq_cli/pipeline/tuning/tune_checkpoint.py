"""What a tuning has measured so far, so that it continues where it was interrupted."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ptq_cli.core.documents.json_values import decode, encode, strict_json
from ptq_cli.core.errors import ReportError
from ptq_cli.core.files import write_text
from ptq_cli.pipeline.tuning.candidate import Seen
from ptq_cli.pipeline.tuning.layer_ranking import LayerRanking
from ptq_cli.report.document.measurement import Measurement

Identity = Mapping[str, str]
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class _Content:
    identity: dict[str, str]
    compared: dict[str, tuple[Measurement, ...]]
    proven: dict[str, tuple[Measurement, ...]]
    samples: dict[str, int]
    rankings: dict[str, LayerRanking]
    written: dict[str, str]


@dataclass(kw_only=True)
class TuneCheckpoint:
    """Measurements by candidate, written to a file after each.

    Attributes:
        path: of the file.
        identity: what they are of; each part under the name that a message gives it.
        compared, proven: measurements by the candidate's key.
        rankings: of the layers, by the key of the candidate that they were ranked for.
        written: SHA-256 of the candidates that were the best so far and were written.
        stored: whether it is written at all; several processes of torchrun store nothing.
    """

    path: Path
    identity: Identity
    compared: dict[str, Seen] = field(default_factory=dict)
    proven: dict[str, Seen] = field(default_factory=dict)
    rankings: dict[str, LayerRanking] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    stored: bool = True

    def save(self) -> None:
        """Write all of it, if it is stored.

        Raises:
            OutputFileError: it cannot be written.
        """
        if not self.stored:
            return
        both = {f"compared {key}": seen.samples for key, seen in self.compared.items()}
        both |= {f"proven {key}": seen.samples for key, seen in self.proven.items()}
        content = _Content(
            identity=dict(self.identity),
            compared={key: seen.measurements for key, seen in self.compared.items()},
            proven={key: seen.measurements for key, seen in self.proven.items()},
            samples=both,
            rankings=self.rankings,
            written=self.written,
        )
        write_text(self.path, json.dumps(encode(content), allow_nan=False))


def continued_tuning(path: Path, identity: Identity, tell: Tell) -> TuneCheckpoint:
    """Return what an earlier tuning measured, if it is of the same; otherwise nothing, and say why.

    Args:
        path: of the checkpoint, which need not exist.
        identity: what it must be of.
        tell: is told that it is continued, or why not.
    """
    fresh = TuneCheckpoint(path=path, identity=identity)
    if not path.is_file():
        return fresh
    try:
        content: _Content = decode(_Content, strict_json(path.read_bytes()), "")
    except (ReportError, ValueError, RecursionError, OSError):
        tell("the checkpoint of an earlier tuning is damaged, and is not continued")
        return fresh
    other = [name for name, value in identity.items() if content.identity.get(name) != value]
    if other:
        tell(f"the earlier tuning is not continued: {other[0]} has changed")
        return fresh
    tell(f"continuing an earlier tuning after {len(content.compared)} candidates; --restart starts again")
    samples = content.samples
    fresh.compared = {
        key: Seen(samples[f"compared {key}"], item)
        for key, item in content.compared.items()
        if f"compared {key}" in samples
    }
    fresh.proven = {
        key: Seen(samples[f"proven {key}"], item)
        for key, item in content.proven.items()
        if f"proven {key}" in samples
    }
    fresh.rankings, fresh.written = dict(content.rankings), dict(content.written)
    return fresh


def discard_tuning(path: Path) -> None:
    """Remove a checkpoint, if there is one."""
    path.unlink(missing_ok=True)
