"""One part of an evaluation as a file: what each batch added to the metrics, and what it is a part of.

The header of the container says which models, data and settings were evaluated; ranks of ``torchrun`` send
one another the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.share import Share, share_to_table, table_to_share
from ptq_cli.core.container import Container
from ptq_cli.core.documents import decode, encode
from ptq_cli.core.errors import EvaluationFileError
from ptq_cli.core.read_files import read_file
from ptq_cli.evaluation.document.report_document import SampleUnit
from ptq_cli.evaluation.metrics.base import State
from ptq_cli.evaluation.runs.parts import MeasuredBatch, PackedKey, pack_states, unpack_states
from ptq_cli.evaluation.runs.sample_axes import Axis

NUMBERS, SAMPLES = "batch numbers", "batch samples"
AGAIN = "run ptq evaluate --shard for it again, or copy the file again"
CONTAINER = Container(
    format="ptq.evaluation_shard",
    version=1,
    error=EvaluationFileError,
    what="a shard of an evaluation",
    made_by="`ptq evaluate --shard 2/8` writes one: evaluation.shard-2-of-8.safetensors",
    again=AGAIN,
)


@dataclass(frozen=True, kw_only=True)
class ShardFacts:
    """What a part of an evaluation is of: the same for all parts.

    Attributes:
        identity: models, data, metrics and settings, each under the name that a message gives it.
        recipe: all settings as TOML, with paths from the run directory.
        models: the quantized models' files, from the run directory.
        metrics: names of the metrics that need labels.
    """

    identity: dict[str, str]
    recipe: str
    models: tuple[str, ...]
    thumbnails: bool
    data_digest: str
    unit: SampleUnit
    class_names: tuple[str, ...]
    metrics: tuple[str, ...]
    axes: tuple[Axis, ...]


@dataclass(frozen=True, kw_only=True)
class EvaluationShard:
    """One part of an evaluation.

    Attributes:
        watched: what was noted besides: the samples that change their class.
    """

    facts: ShardFacts
    share: Share
    batches: tuple[MeasuredBatch, ...]
    watched: State

    @property
    def samples(self) -> int:
        """How many samples it has seen."""
        return sum(batch.samples for batch in self.batches)


@dataclass(frozen=True)
class _Header:
    facts: ShardFacts
    packed: tuple[PackedKey, ...]
    watched: tuple[str, ...]


def shard_bytes(shard: EvaluationShard) -> bytes:
    """Return a shard as the content of a file; the same shard gives the same bytes."""
    packed, arrays = pack_states([batch.state for batch in shard.batches])
    arrays |= {f"watched.{index}": array for index, array in enumerate(shard.watched.values())}
    arrays[NUMBERS] = np.array([batch.number for batch in shard.batches], np.int64)
    arrays[SAMPLES] = np.array([batch.samples for batch in shard.batches], np.int64)
    header = {
        "share": share_to_table(shard.share),
        "content": encode(_Header(shard.facts, packed, tuple(shard.watched))),
    }
    return CONTAINER.content(header, arrays)


def load_shard(path: Path) -> EvaluationShard:
    """Read a shard."""
    return parse_shard_bytes(read_file(path, "shard of an evaluation"), str(path))


def parse_shard_bytes(content: bytes, name: str) -> EvaluationShard:
    """Return the shard that a file's content holds; ``name`` is for messages."""
    return CONTAINER.parse(content, name, _shard)


def _shard(table: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> EvaluationShard:
    header: _Header = decode(_Header, table["content"], "content")
    share = table_to_share(table["share"])
    if share is None or len(share.batches) != 1:
        raise ValueError("it does not say which shard it is")
    return EvaluationShard(
        facts=header.facts,
        share=share,
        batches=_batches(header, arrays, share),
        watched={key: arrays[f"watched.{index}"] for index, key in enumerate(header.watched)},
    )


def _batches(
    header: _Header, arrays: Mapping[str, npt.NDArray[Any]], share: Share
) -> tuple[MeasuredBatch, ...]:
    numbers, samples = (arrays[name].tolist() for name in (NUMBERS, SAMPLES))
    ((shard, count),) = share.batches.items()
    if numbers != [place * share.count + shard - 1 for place in range(count)]:
        raise ValueError("its batches are not those of its shard")
    if len(samples) != count or not all(1 <= size <= share.batch_size for size in samples):
        raise ValueError("its batches have no or too many samples")
    states = unpack_states(header.packed, arrays, count)
    return tuple(MeasuredBatch(*batch) for batch in zip(numbers, samples, states, strict=True))
