"""The parts of an evaluation become the whole: refused unless they are parts of the same one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ptq_cli.collectors.artifact.merge_calibrations import require_dealt
from ptq_cli.core.errors import (
    EvaluationFileError,
    IncompleteEvaluationError,
    MergeError,
    OverlappingShardsError,
    ReportError,
)
from ptq_cli.pipeline.evaluation.measuring.evaluation_data import MeasuredSet
from ptq_cli.pipeline.evaluation.measuring.one_pass import EvaluatedModels, evaluator_maker
from ptq_cli.pipeline.evaluation.parts.evaluation_shard import AGAIN, EvaluationShard
from ptq_cli.report.evaluation.evaluator import Evaluator, Watch
from ptq_cli.report.evaluation.part_evaluator import joined_batches

SHOWN_LENGTH = 60
HINT = "evaluate every shard with the same models, data, settings and batch size"


@dataclass(frozen=True)
class NamedShard:
    """A part, and what to call it in a message."""

    name: str
    shard: EvaluationShard


def joined_shards(
    shards: Sequence[NamedShard],
    measured: MeasuredSet,
    models: EvaluatedModels,
    watches: Sequence[Watch],
    *,
    with_pytorch: bool,
) -> Evaluator:
    """Return an evaluator that has seen what all parts have seen together.

    Args:
        shards: all parts, at least one, in any order.
        measured: the metrics.
        models: that were evaluated.
        watches: new ones, which have seen all samples at the end.
        with_pytorch: whether the PyTorch model was evaluated too.

    Raises:
        MergeError: they are not parts of the same evaluation.
        OverlappingShardsError: two are the same part.
        IncompleteEvaluationError: a part is missing, or not finished.
        EvaluationFileError: what a part has measured is damaged.
        MetricError: an output has another layout in one part than in another.
    """
    require_whole(shards)
    make = evaluator_maker(models, measured, watches, with_pytorch=with_pytorch)
    batches = [batch for named in shards for batch in named.shard.batches]
    watched = [named.shard.watched for named in shards]
    try:
        return joined_batches(make, batches, watched, shards[0].shard.share.batch_size)
    except (ValueError, KeyError, IndexError, TypeError, ReportError) as error:
        raise EvaluationFileError(
            f"the shards cannot be joined: one is damaged ({type(error).__name__})", hint=AGAIN
        ) from error


def require_whole(shards: Sequence[NamedShard]) -> None:
    """Refuse parts that do not make a whole.

    Raises:
        MergeError: they are not parts of the same evaluation.
        OverlappingShardsError: two are the same part.
        IncompleteEvaluationError: a part is missing, or not finished.
    """
    first, holders = shards[0], dict[int, str]()
    for named in shards:
        share = named.shard.share
        if not share.finished:
            raise IncompleteEvaluationError(
                f"{named.name} is a checkpoint of {share.describe()}, which is not finished",
                hint="run `ptq evaluate` for it again; it continues where it stopped",
            )
        one, two = (_described(item.shard) for item in (first, named))
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
    require_dealt(whole)


def _described(shard: EvaluationShard) -> dict[str, str]:
    return {**shard.facts.identity, "the number of shards": str(shard.share.count)}


def first_difference(one: Mapping[str, str], two: Mapping[str, str]) -> str:
    """Return the name of the first entry that differs; an empty text if none does.

    Example:
        >>> first_difference({"a": "1", "b": "2"}, {"a": "1"})
        'b'
    """
    keys = [*one, *(key for key in two if key not in one)]
    return next((key for key in keys if one.get(key) != two.get(key)), "")


def not_the_same(first: str, other: str, key: str, one: str, two: str) -> MergeError:
    """Return the error that says in what two parts differ.

    Example:
        >>> not_the_same("'a'", "'b'", "the batch size", "4", "8").message
        "'a' and 'b' are not shards of the same evaluation: the batch size is 4 in the first and 8 in the \
second"
    """
    found = f"{key} is {_short(one)} in the first and {_short(two)} in the second"
    return MergeError(f"{first} and {other} are not shards of the same evaluation: {found}", hint=HINT)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"
