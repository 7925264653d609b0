"""Candidates as models: each is exported as ``ptq quantize`` would with its recipe, and measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ptq_cli.calibdata.dataset.set_aside import DividedDataset, Division
from ptq_cli.core.files import write_together
from ptq_cli.core.read_files import sha256_file
from ptq_cli.core.work.progress import ProgressCallback
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.evaluation.measuring.evaluation_checkpoint import discard_evaluation_checkpoint
from ptq_cli.pipeline.evaluation.measuring.evaluation_data import EvaluationSet
from ptq_cli.pipeline.evaluation.measuring.one_pass import EvaluatedModels, evaluate_pass
from ptq_cli.pipeline.evaluation.parts.evaluation_part import evaluate_together
from ptq_cli.pipeline.exporting.export_result import Exported
from ptq_cli.pipeline.exporting.recovering.recovery_data import recovery_data
from ptq_cli.pipeline.exporting.run_export import make_export
from ptq_cli.pipeline.run.resolve import Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.pipeline.tuning.candidate import Candidate, Seen
from ptq_cli.pipeline.tuning.candidate_calibrations import (
    CandidateCalibration,
    CandidateCalibrations,
)
from ptq_cli.pipeline.tuning.climbing_party import Party
from ptq_cli.pipeline.tuning.layer_modes import BLOCK, dynamic_candidates, weight_only_candidates
from ptq_cli.pipeline.tuning.layer_noise import layer_noise
from ptq_cli.pipeline.tuning.layer_ranking import LOUDEST, LayerRanking, layer_costs
from ptq_cli.pipeline.tuning.sixteen_bits import activations_of, wide_format
from ptq_cli.pipeline.tuning.tune_checkpoint import TuneCheckpoint
from ptq_cli.qdq.read.padded_channels import without_padding
from ptq_cli.qdq.read.quantized_file import with_types
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recipe.activation_modes import DYNAMIC, FLOAT
from ptq_cli.recipe.recovery_rungs import NONE, REWRITING
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.quantization_sections import (
    ActivationSettings,
    OverrideSettings,
    RecoverySettings,
    WeightSettings,
)
from ptq_cli.report.evaluation.evaluator import Evaluation

RANKED_ON = 64
"""Samples that layers are ranked on."""
FEW_LEVELS = (2, 5, 8)
"""How often the noise is halved by layers that cost little more than integers in measured ranges."""


@dataclass(kw_only=True)
class CandidateModels:
    """Makes and measures candidates, and remembers both.

    Attributes:
        resolved: the recipe that candidates change, with the machine.
        deciding: the recipe of the evaluations that decide.
        calibrations: what candidates are exported from.
        float_model: without rewrites, that all candidates are compared with.
        compared_on: the samples to choose by.
        proven_on: the samples set aside.
        run: the run directory.
        output: where the best candidate is written.
        checkpoint: what was measured.
        progress: is told about all of it.
        party: the processes that measure together.
    """

    resolved: Resolved
    deciding: Resolved
    calibrations: CandidateCalibrations
    float_model: StoredModel
    compared_on: EvaluationSet
    proven_on: EvaluationSet
    run: RunDirectory
    output: Path
    checkpoint: TuneCheckpoint
    progress: ProgressCallback
    party: Party = field(default_factory=Party)

    def __post_init__(self) -> None:
        self._made: dict[str, Exported] = {}
        self._alike: dict[tuple[str, str], str] = {}
        self._written: CandidateCalibration | None = None

    @property
    def set_aside(self) -> int:
        """How many samples the budget is proven on."""
        proven = next(iter(self.checkpoint.proven.values()), None)
        return proven.samples if proven is not None else self.proven_on.dataset.count or 1

    def compare(self, candidate: Candidate) -> Seen:
        """Measure a candidate on the samples to choose by."""
        return self._measured(candidate, self.compared_on, self.checkpoint.compared)

    def prove(self, candidate: Candidate) -> Seen:
        """Measure a candidate on the samples set aside."""
        return self._measured(candidate, self.proven_on, self.checkpoint.proven)

    def wide_activations(self, candidate: Candidate) -> Sequence[tuple[str, ...]]:
        """Return which activations to give 16 bits; none if the target does not compute with them."""
        resolved = self.resolved
        if not wide_format(resolved.target, resolved.recipe.activations):
            return ()
        plan, base = self.export(candidate).result.plan, self.calibrations.of(candidate.rungs)
        graph = base.float_model.load()
        levels = self._ranked(candidate).levels()
        found = [activations_of(graph, plan, layers) for layers in levels]
        return tuple(dict.fromkeys(tensors for tensors in found if tensors))

    def dynamic_layers(self, candidate: Candidate) -> Sequence[tuple[str, ...]]:
        """Return which layers to give ranges that are found at each run."""
        ranking = self._ranked(candidate)
        return ranking.levels(ranking.dynamic, FEW_LEVELS)

    def weight_only_layers(self, candidate: Candidate) -> Sequence[tuple[str, ...]]:
        """Return which layers to quantize the weights of alone."""
        ranking = self._ranked(candidate)
        return ranking.levels(ranking.weight_only, FEW_LEVELS)

    def float_layers(self, candidate: Candidate) -> Sequence[tuple[str, ...]]:
        """Return which layers to leave in float for more and more accuracy."""
        return self._ranked(candidate).levels()

    def _ranked(self, candidate: Candidate) -> LayerRanking:
        if candidate.key not in self.checkpoint.rankings:
            exported, base = self.export(candidate), self.calibrations.of(candidate.rungs)
            twins = TwinGraphs(base.float_model.load(), with_types(without_padding(exported.model.load())))
            plan, recipe, target = exported.result.plan, self.resolved.recipe, self.resolved.target
            noise = layer_noise(
                twins,
                plan,
                target,
                first_samples(self.compared_on, RANKED_ON).dataset,
                base.subject.model.inputs,
                batch_size=base.subject.batch_size,
                threads=self.resolved.machine.threads,
                progress=self.progress,
            )
            self.checkpoint.rankings[candidate.key] = LayerRanking(
                noise={name: share if share < LOUDEST else LOUDEST for name, share in noise.items()},
                cost=layer_costs(twins.float_model, plan, noise, recipe.export.prefer),
                dynamic=dynamic_candidates(twins.float_model, plan, target, recipe),
                weight_only=weight_only_candidates(twins.float_model, plan, target, recipe),
            )
            self.checkpoint.save()
        return self.checkpoint.rankings[candidate.key]

    def keep(self, candidate: Candidate) -> None:
        """Write a candidate: it is the best so far."""
        written = self.checkpoint.written.get(candidate.key)
        if written is not None and self.output.is_file() and sha256_file(self.output) == written:
            return
        exported, base = self.export(candidate), self.calibrations.of(candidate.rungs)
        digest = exported.model.sha256
        files = base.files if base is not self._written else {}
        if self.party.is_first:
            write_together({**files, **exported.files})
        self._written = base
        if exported.model.data and self.party.is_first:  # They have moved to their place.
            self._made[candidate.key] = replace(exported, model=read_model(self.output))
        self.checkpoint.written[candidate.key] = digest
        self.checkpoint.save()

    def _measured(self, candidate: Candidate, chosen: EvaluationSet, known: dict[str, Seen]) -> Seen:
        if candidate.key not in known:
            first = self._alike.setdefault(self._what_it_is(candidate), candidate.key)
            if first in known:  # A rung that changed nothing is not measured again.
                known[candidate.key] = known[first]
                return known[first]
            model = self.export(candidate).model
            models = EvaluatedModels(self.float_model, {self.output.name: model})
            (found,) = self._evaluated(models, chosen)
            known[candidate.key] = Seen(found.samples, found.measurements)
            self.checkpoint.save()
        return known[candidate.key]

    def _what_it_is(self, candidate: Candidate) -> tuple[str, str]:
        """Return what is the same for candidates whose further rungs have left the float model as it was."""
        others = tuple(rung for rung in candidate.rungs if rung not in REWRITING)
        float_model = self.calibrations.float_model_of(candidate.rungs)
        return float_model.sha256, replace(candidate, rungs=others).key

    def _evaluated(self, models: EvaluatedModels, chosen: EvaluationSet) -> tuple[Evaluation, ...]:
        if self.party.group is not None:
            return evaluate_together(self.deciding, models, chosen, self.progress, self.party.group)
        discard_evaluation_checkpoint(self.run.evaluation_checkpoint)
        found = evaluate_pass(self.deciding, models, chosen, self.run, self.progress)
        discard_evaluation_checkpoint(self.run.evaluation_checkpoint)
        return found

    def export(self, candidate: Candidate) -> Exported:
        """Return a candidate as a file; the last one is remembered."""
        if candidate.key not in self._made:
            for made in self._made.values():  # Only the last is needed again.
                made.model.discard()
            self._made.clear()
            wide = wide_format(self.resolved.target, self.resolved.recipe.activations)
            resolved = self.resolved.with_recipe(recipe_of(self.resolved.recipe, candidate, wide))
            base = self.calibrations.of(candidate.rungs)
            data = recovery_data(resolved, base.subject.dataset, base.subject.model.inputs)
            data = replace(data, known_costs=base.known_costs) if data is not None else None
            self._made[candidate.key] = make_export(
                resolved,
                base.calibration,
                base.float_model,
                base.float_model.load(),
                self.run,
                self.output,
                base.subject.plan,
                data=data,
                progress=self.progress,
            )
        return self._made[candidate.key]


def recipe_of(recipe: Recipe, candidate: Candidate, wide: str = "") -> Recipe:
    """Return the recipe of a candidate, with which ``ptq quantize`` makes the same file.

    Args:
        recipe: that the candidate changes.
        candidate: rungs, and what is in float or in 16 bits.
        wide: the integers of 16 bits.

    Example:
        >>> found = recipe_of(Recipe(), Candidate(rungs=("round",), in_float=("head",)))
        >>> found.recovery.rungs, found.override[0].match, found.override[0].quantize
        (['round'], 'head', False)
    """
    floats = [OverrideSettings(match=name, quantize=False) for name in candidate.in_float]
    wider = [
        OverrideSettings(match=name, activations=ActivationSettings(dtype=wide))
        for name in candidate.in_16_bits
    ]
    modes = [
        OverrideSettings(match=name, activations=ActivationSettings(mode=DYNAMIC))
        for name in candidate.dynamic
    ]
    modes += [
        OverrideSettings(
            match=name,
            activations=ActivationSettings(mode=FLOAT),
            weights=WeightSettings(block_size=BLOCK),
        )
        for name in candidate.weights_alone
    ]
    rungs = list(candidate.rungs) or [NONE]
    override = [*recipe.override, *wider, *modes, *floats]
    return replace(recipe, recovery=RecoverySettings(rungs), override=override)


def first_samples(chosen: EvaluationSet, most: int) -> EvaluationSet:
    """Return at most about so many of a set's samples, spread evenly over it."""
    count = chosen.dataset.count
    if count is None or count <= most:
        return chosen
    division = Division(most / count, chosen.fixed_batch or 1)
    return replace(chosen, dataset=DividedDataset(chosen.dataset, division, aside=True))
