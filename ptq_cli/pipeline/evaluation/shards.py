"""Parts of an evaluation: the file of one, and how all of them become the whole.

A file holds what each batch added to the metrics; its header says which models, data and settings were
evaluated. Ranks of ``torchrun`` send one another the same bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.calibration_file import Share, require_dealt, share_to_table, table_to_share
from ptq_cli.core.container import Container
from ptq_cli.core.documents import decode, encode
from ptq_cli.core.errors import (
    EvaluationFileError,
    IncompleteEvaluationError,
    MergeError,
    OverlappingShardsError,
    ReportError,
)
from ptq_cli.core.read_files import read_file
from ptq_cli.evaluation.document.report_document import SampleUnit
from ptq_cli.evaluation.metrics.base import State
from ptq_cli.evaluation.runs.evaluator import Evaluator
from ptq_cli.evaluation.runs.model_outputs import Axis
from ptq_cli.evaluation.runs.run_models import (
    MeasuredBatch,
    PackedKey,
    joined_batches,
    pack_states,
    unpack_states,
)

_NUMBERS, _SAMPLES = "batch numbers", "batch samples"
_SHOWN_LENGTH = 60  # characters of a value in a message
_HINT = "evaluate every shard with the same models, data, settings and batch size"
RUN_SHARD_AGAIN = "run ptq evaluate --shard for it again, or copy the file again"
_CONTAINER = Container(
    format="ptq.evaluation_shard",
    version=2,
    error=EvaluationFileError,
    what="a shard of an evaluation",
    made_by="`ptq evaluate --shard 2/8` writes one: evaluation.shard-2-of-8.safetensors",
    again=RUN_SHARD_AGAIN,
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
    """A shard as the content of a file; the same shard gives the same bytes."""
    packed, arrays = pack_states([batch.state for batch in shard.batches])
    arrays |= {f"watched.{index}": array for index, array in enumerate(shard.watched.values())}
    arrays[_NUMBERS] = np.array([batch.number for batch in shard.batches], np.int64)
    arrays[_SAMPLES] = np.array([batch.samples for batch in shard.batches], np.int64)
    header = {
        "share": share_to_table(shard.share),
        "content": encode(_Header(shard.facts, packed, tuple(shard.watched))),
    }
    return _CONTAINER.content(header, arrays)


def load_shard(path: Path) -> EvaluationShard:
    """Read a shard."""
    return parse_shard_bytes(read_file(path, "shard of an evaluation"), str(path))


def parse_shard_bytes(content: bytes, name: str) -> EvaluationShard:
    """The shard that a file's content holds; ``name`` is for messages."""
    return _CONTAINER.parse(content, name, _shard)


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
    numbers, samples = (arrays[name].tolist() for name in (_NUMBERS, _SAMPLES))
    ((shard, count),) = share.batches.items()
    if numbers != [place * share.count + shard - 1 for place in range(count)]:
        raise ValueError("its batches are not those of its shard")
    if len(samples) != count or not all(1 <= size <= share.batch_size for size in samples):
        raise ValueError("its batches have no or too many samples")
    states = unpack_states(header.packed, arrays, count)
    return tuple(MeasuredBatch(*batch) for batch in zip(numbers, samples, states, strict=True))


@dataclass(frozen=True)
class NamedShard:
    """A part, and what to call it in a message."""

    name: str
    shard: EvaluationShard


def joined_shards(shards: Sequence[NamedShard], make: Callable[[], Evaluator]) -> Evaluator:
    """An evaluator that has seen what all parts have seen together, as have its watches."""
    require_whole(shards)
    batches = [batch for named in shards for batch in named.shard.batches]
    watched = [named.shard.watched for named in shards]
    try:
        return joined_batches(make, batches, watched, shards[0].shard.share.batch_size)
    except (ValueError, KeyError, IndexError, TypeError, ReportError) as error:
        # Checksums protect against damage, not against a file that was made to look like a shard.
        raise EvaluationFileError(
            f"the shards cannot be joined: one is damaged ({type(error).__name__})", hint=RUN_SHARD_AGAIN
        ) from error


def require_whole(shards: Sequence[NamedShard]) -> None:
    """Refuse parts that do not make a whole."""
    first, holders = shards[0], dict[int, str]()
    for named in shards:
        share = named.shard.share
        # Checked first: a checkpoint's other facts may be right, and its batches still incomplete.
        if not share.finished:
            raise IncompleteEvaluationError(
                f"{named.name} is a checkpoint of {share.describe()}, which is not finished",
                hint="run `ptq evaluate` for it again; it continues where it stopped",
            )
        one, two = (
            {**item.shard.facts.identity, "the number of shards": str(item.shard.share.count)}
            for item in (first, named)
        )
        if key := first_difference(one, two):
            raise not_the_same(first.name, named.name, key, one.get(key, ""), two.get(key, ""))
        for number in share.batches:
            if number in holders:
                raise OverlappingShardsError(
                    f"{holders[number]} and {named.name} both hold shard {number} of {share.count}",
                    hint="name each shard once",
                )
            holders[number] = named.name
    batches = {number: count for named in shards for number, count in named.shard.share.batches.items()}
    whole = replace(first.shard.share, batches=batches)
    if not whole.is_whole:
        raise IncompleteEvaluationError(
            f"not among the shards: {whole.describe_missing()}",
            hint="run ptq evaluate --shard for the missing shards, and name all of them",
        )
    # Last: only all shards together tell how many batches each of them should have.
    require_dealt(whole)


def first_difference(one: Mapping[str, str], two: Mapping[str, str]) -> str:
    """The name of the first entry that differs; an empty text if none does."""
    keys = [*one, *(key for key in two if key not in one)]
    return next((key for key in keys if one.get(key) != two.get(key)), "")


def not_the_same(first: str, other: str, key: str, one: str, two: str) -> MergeError:
    """The error that says in what two parts differ."""
    found = f"{key} is {_short(one)} in the first and {_short(two)} in the second"
    return MergeError(f"{first} and {other} are not shards of the same evaluation: {found}", hint=_HINT)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"
