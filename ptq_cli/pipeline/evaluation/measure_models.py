"""All models run over the evaluation set once, from the last checkpoint on.

One process measures all of it, or one shard; the ranks of ``torchrun`` measure a shard each, and join them.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptq_cli.calibdata.dataset.batches import Selection, Shard, checked, decoded_ahead
from ptq_cli.calibdata.text.token_samples import TextTokenizer
from ptq_cli.collectors.calibration_file import Share
from ptq_cli.core.container import Arrays, Container
from ptq_cli.core.errors import EvaluationFileError, PtqError, ReportError, UsageError
from ptq_cli.core.files import write_together
from ptq_cli.core.read_files import read_file
from ptq_cli.evaluation.generation import Continued, compared_tokens, continued_prompts
from ptq_cli.evaluation.runs.comparisons import ChangeCollector
from ptq_cli.evaluation.runs.evaluator import Evaluation
from ptq_cli.evaluation.runs.run_models import PartEvaluator, run_evaluator
from ptq_cli.pipeline.evaluation.evaluation_set import EvaluationSet, SetSummary
from ptq_cli.pipeline.evaluation.opened_pass import (
    EVALUATE_STAGE,
    OpenedPass,
    evaluations_of,
    evaluator_maker,
    open_pass,
)
from ptq_cli.pipeline.evaluation.quantized_models import EvaluatedModels
from ptq_cli.pipeline.evaluation.shards import (
    EvaluationShard,
    NamedShard,
    ShardFacts,
    joined_shards,
    load_shard,
    parse_shard_bytes,
    shard_bytes,
)
from ptq_cli.recipe.locations import relative_location
from ptq_cli.setup.parts import Work
from ptq_cli.setup.resumable import NO_CHECKPOINTS, Checkpoints, Tell, changed_since, continued

if TYPE_CHECKING:
    from ptq_cli.setup.distributed import Group

_CONTAINER = Container(
    format="ptq.evaluation",
    version=2,
    error=EvaluationFileError,
    what="a checkpoint of an evaluation",
    made_by="`ptq evaluate` writes one while it runs",
    again="evaluate again with --set run.restart=true",
    is_flat=False,
)
_WORK = "evaluation"


def evaluate_pass(
    work: Work,
    models: EvaluatedModels,
    evaluation_set: EvaluationSet,
    watches: Sequence[ChangeCollector] = (),
) -> tuple[Evaluation, ...]:
    """Run all models over the evaluation set once, and return what was measured of each quantized one.

    There is one new watch for each quantized model, which sees its outputs too. Each rank of torchrun runs
    its share of the batches, and gets the whole result.
    """
    if work.part.group is not None:
        return _evaluate_together(work, work.part.group, models, evaluation_set, watches)
    opened = open_pass(work, models, evaluation_set, watches)
    so_far = _WholeSoFar(opened)
    _run(work, opened, evaluation_set, so_far, work.run.evaluation_checkpoint)
    found = evaluations_of(so_far.evaluator, evaluation_set.outputs, opened.axes)
    how = evaluation_set.continuation
    if how is None:
        return found
    prompts = continued_prompts(how, opened.runs, evaluation_set.dataset, work.progress)
    return _with_generations(found, prompts, work.resolved.recipe.text.tokenizer)


def evaluate_shard(
    work: Work,
    models: EvaluatedModels,
    evaluation_set: EvaluationSet,
    watches: Sequence[ChangeCollector],
    origin: "ShardOrigin | None" = None,
    checkpoint: Path | None = None,
) -> EvaluationShard:
    """Run all models over the part's batches, and return what each batch adds to the metrics.

    ``origin`` is what the file has to say besides; without a ``checkpoint`` nothing is written on the way.
    """
    if evaluation_set.carries:
        raise UsageError(
            "recordings are evaluated by one process: each model reads its own states",
            hint="leave --shard out; calibrations are divided by recordings",
        )
    if evaluation_set.continuation is not None:
        raise UsageError(
            "prompts are continued by one process", hint="leave --generate out, or --shard and torchrun"
        )
    opened = open_pass(work, models, evaluation_set, watches)
    facts = _facts(opened, evaluation_set, origin or ShardOrigin())
    so_far = _PartSoFar(opened, facts, work.part.shard, evaluation_set.batch_size)
    _run(work, opened, evaluation_set, so_far, checkpoint)
    return so_far.shard(finished=True)


def _evaluate_together(
    work: Work,
    group: "Group",
    models: EvaluatedModels,
    evaluation_set: EvaluationSet,
    watches: Sequence[ChangeCollector],
) -> tuple[Evaluation, ...]:
    part = evaluate_shard(work, models, evaluation_set, watches)
    # The bytes of the files that shards have: what is proven of these holds for ranks.
    contents = group.exchange(shard_bytes(part), group.next_place())
    shards = [
        NamedShard(f"rank {rank}", parse_shard_bytes(content, f"rank {rank}"))
        for rank, content in enumerate(contents)
    ]
    make = evaluator_maker(models, SetSummary.of(evaluation_set), watches)
    return evaluations_of(joined_shards(shards, make), evaluation_set.outputs, part.facts.axes)


def _run(
    work: Work,
    opened: OpenedPass,
    evaluation_set: EvaluationSet,
    so_far: "_WholeSoFar | _PartSoFar",
    checkpoint: Path | None,
) -> None:
    """Run the part's batches that are left."""
    dataset, size = evaluation_set.dataset, evaluation_set.batch_size
    checkpoints = _resumed(work, so_far, checkpoint, is_resumable=dataset.is_resumable)

    def after_batch() -> None:
        work.part.go_on()
        if checkpoints is not None and so_far.is_sound and checkpoints.is_due():
            checkpoints.write(so_far.save)

    shard = work.part.shard
    total = Selection(shard).samples(dataset.count, size) if dataset.count is not None else None
    batches = checked(dataset.batches(size, Selection(shard, so_far.batches)))
    # Closed on an error, too: the thread that decodes would otherwise wait for a reader for ever.
    with closing(decoded_ahead(batches)) as decoded:
        run_evaluator(
            so_far.evaluator,
            opened.runs,
            decoded,
            total=total,
            progress=work.progress,
            after_batch=after_batch,
        )


def _resumed(
    work: Work, so_far: "_WholeSoFar | _PartSoFar", checkpoint: Path | None, *, is_resumable: bool
) -> Checkpoints | None:
    """Go on from a checkpoint; return what writes further ones, None where none are."""
    tell = partial(work.tell, stage=EVALUATE_STAGE)
    if checkpoint is None:
        return None
    if not is_resumable:
        tell(NO_CHECKPOINTS)
        return None
    so_far.resume(checkpoint, tell)
    if so_far.not_resumable:
        tell(
            f"no checkpoints are written: {' and '.join(so_far.not_resumable)} cannot continue from one, "
            "because it has no state_dict and load_state_dict"
        )
        return None
    return Checkpoints(checkpoint, _WORK, work.resolved.recipe.runtime.checkpoint_every, tell)


class _WholeSoFar:
    """What the metrics hold of all batches so far."""

    def __init__(self, opened: OpenedPass) -> None:
        self.evaluator, self._make, self._identity = opened.make(), opened.make, opened.identity

    @property
    def batches(self) -> int:
        return self.evaluator.batches

    @property
    def is_sound(self) -> bool:
        return not self.evaluator.is_refused

    @property
    def not_resumable(self) -> Sequence[str]:
        return self.evaluator.not_resumable

    def resume(self, path: Path, tell: Tell) -> None:
        """Go on from a checkpoint of this very evaluation, or tell why not."""
        found = continued(
            path, _WORK, _read, self._refusal, lambda _found: f"{self.evaluator.samples} samples", tell
        )
        if found is None:
            # Not the evaluator that a damaged state was loaded into: a part of it may be set already.
            self.evaluator = self._make()

    def save(self, path: Path) -> None:
        evaluator = self.evaluator
        arrays = {key: np.asarray(array, order="C") for key, array in evaluator.state().items()}
        header = {
            "batches": evaluator.batches,
            "samples": evaluator.samples,
            "identity": dict(self._identity),
        }
        write_together({path: _CONTAINER.content(header, arrays)})

    def _refusal(self, found: tuple[dict[str, Any], Arrays]) -> str:
        """Say why a checkpoint is not of this evaluation; an empty text if it is, and then load it."""
        header, arrays = found
        try:
            changed = changed_since(header["identity"], self._identity)
            if not changed:
                batches, samples = int(header["batches"]), int(header["samples"])
                self.evaluator.load_state(dict(arrays), batches=batches, samples=samples)
        # A file from outside: what does not fit is a reason to start over, whatever it makes the parts raise.
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, PtqError) as error:
            return f"it is damaged ({type(error).__name__})"
        return changed


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    content = read_file(path, _CONTAINER.what)
    return _CONTAINER.parse(content, str(path), lambda header, arrays: (header, arrays))


@dataclass(frozen=True)
class ShardOrigin:
    """What the file of a shard has to say, so that the reports can be made from it alone.

    Nothing of a rank's, which holds all of it in memory.
    """

    recipe: str = ""
    models: tuple[str, ...] = ()


class _PartSoFar:
    """What was measured of a part, as the file of a shard that is not finished."""

    is_sound, not_resumable = True, ()

    def __init__(self, opened: OpenedPass, facts: ShardFacts, shard: Shard, batch_size: int) -> None:
        self.evaluator = PartEvaluator(opened.make, shard, batch_size)
        self._facts, self._shard, self._batch_size = facts, shard, batch_size

    @property
    def batches(self) -> int:
        return len(self.evaluator.batches)

    def shard(self, *, finished: bool) -> EvaluationShard:
        batches = tuple(self.evaluator.batches)
        share = Share(self._shard.count, {self._shard.number: len(batches)}, self._batch_size, finished)
        return EvaluationShard(
            facts=self._facts, share=share, batches=batches, watched=self.evaluator.watches_state()
        )

    def save(self, path: Path) -> None:
        write_together({path: shard_bytes(self.shard(finished=False))})

    def resume(self, path: Path, tell: Tell) -> None:
        """Go on from a checkpoint of this very part, or tell why not."""
        continued(path, _WORK, load_shard, self._refusal, lambda found: f"{found.samples} samples", tell)

    def _refusal(self, found: EvaluationShard) -> str:
        reason = self._difference(found)
        if not reason:
            try:
                self.evaluator.resume(found.batches, found.watched)
            except (ReportError, ValueError, KeyError) as error:
                reason = f"it is damaged ({type(error).__name__})"
        return reason

    def _difference(self, found: EvaluationShard) -> str:
        if changed := changed_since(found.facts.identity, self._facts.identity):
            return changed
        # The number of batches is not compared: an earlier checkpoint has fewer or more of them.
        mine = self.shard(finished=False).share
        is_same = (found.share.count, found.share.batches.keys()) == (mine.count, mine.batches.keys())
        return "" if is_same else f"it is for {found.share.describe()}"


def _facts(opened: OpenedPass, evaluation_set: EvaluationSet, origin: ShardOrigin) -> ShardFacts:
    return ShardFacts(
        identity=dict(opened.identity),
        recipe=origin.recipe,
        models=origin.models,
        data_digest=evaluation_set.dataset.digest(),
        unit="step" if evaluation_set.is_step else "sample",
        class_names=tuple(evaluation_set.dataset.class_names),
        metrics=tuple(judged.spec.name for judged in evaluation_set.metrics),
        axes=opened.axes,
    )


def _with_generations(
    evaluations: Sequence[Evaluation], prompts: Sequence[Continued], tokenizer: str | None
) -> tuple[Evaluation, ...]:
    """Evaluations with how the prompts were continued, as texts if there is a tokenizer."""
    text_of = TextTokenizer(tokenizer).text_of if tokenizer is not None else None
    # Texts are named by their files: the report is to be the same wherever its folder lies.
    named = [replace(item, prompt=_as_seen(item.prompt)) for item in prompts]
    compared = [compared_tokens(named, index, text_of) for index in range(len(evaluations))]
    return tuple(
        replace(item, measurements=(*item.measurements, measured), generation=generation)
        for item, (measured, generation) in zip(evaluations, compared, strict=True)
    )


def _as_seen(name: str) -> str:
    return relative_location(name, Path.cwd()) if Path(name).is_absolute() else name
