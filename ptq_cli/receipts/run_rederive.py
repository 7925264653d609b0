"""``verify --rederive``: a quantized file is made again from what its statement names, and compared."""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from ptq_cli.collectors.calibration_file import Calibration, parse_calibration
from ptq_cli.core.documents import read_document
from ptq_cli.core.errors import NotRederivableError, StatementError, UsageError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.read_files import parse_toml, read_file, require_file, sha256_file, sha256_text
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.models.files.mapped_constants import DATA_SUFFIX
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.exported_file import quantized_path
from ptq_cli.pipeline.run_export import Exported, make_export
from ptq_cli.pipeline.statement import (
    AGAIN,
    OF_FOLDER,
    UNFINISHED,
    Artifact,
    Derivation,
    Statement,
    read_statement,
    subjects,
)
from ptq_cli.pipeline.trial_models import CalibratedModel
from ptq_cli.receipts.differences import FileDifference, file_differences
from ptq_cli.recipe.recipe_layers import table_layer
from ptq_cli.recipe.sections import LATENCY
from ptq_cli.recover.recovery_context import RecoveryData, open_recovery_data
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.run_directory import RunDirectory, statement_path

NOTHING = "none"
MOST_DIFFERENCES = 20
_UNREPEATABLE = {
    LATENCY: "times of a machine placed its layers (--prefer latency)",
    UNFINISHED: "Ctrl-C ended its recovery",
    OF_FOLDER: "its weights or its constants are shared with other files of a folder",
}


@dataclass(frozen=True, kw_only=True)
class GivenParts:
    """What a file is made again from, where it is not in the run directory.

    Attributes:
        data: calibration data, if they are not where the recipe says.
    """

    float_model: Path | None = None
    statistics: Path | None = None
    recipe: Path | None = None
    data: Path | None = None


@dataclass(frozen=True, kw_only=True)
class StatedFact:
    """What a statement says, beside what was found."""

    DERIVED: ClassVar[tuple[str, ...]] = ("holds",)

    what: Annotated[str, "What it is said of, such as float model."]
    stated: Annotated[str, "What the statement says: a SHA-256 of files."]
    found: Annotated[str, "What is so; empty if it was not looked for."]

    @property
    def holds(self) -> bool:
        """Whether they agree; of what was not looked for, true."""
        return not self.found or self.stated == self.found


@dataclass(frozen=True, kw_only=True)
class Rederivation:
    """What came out when a quantized file was made again."""

    DERIVED: ClassVar[tuple[str, ...]] = ("verdict",)

    model: Annotated[Path, "The file."]
    statement: Annotated[Path, "The statement about it."]
    bytes: Annotated[int, "Size of the file with its constants."]
    facts: Annotated[tuple[StatedFact, ...], "What the statement says, and what is so."]
    derived: Annotated[bool, "Whether it was made again; not from other files than the statement names."] = (
        False
    )
    by_runs: Annotated[tuple[str, ...], "What was decided by running models again."] = ()
    differences: Annotated[tuple[FileDifference, ...], "The first parts that differ from what was made."] = ()
    more: Annotated[int, "How many more differ."] = 0
    other_versions: Annotated[
        Mapping[str, str], "Libraries of another version than those that made the file: OLD, now NEW."
    ] = field(default_factory=dict)

    @property
    def verdict(self) -> Literal["pass", "fail"]:
        """Whether the file has the bytes that were made again, and the statement holds."""
        is_same = self.derived and not self.differences and all(fact.holds for fact in self.facts)
        return "pass" if is_same else "fail"


def run_rederive(
    run: RunDirectory,
    model: Path | None = None,
    given: GivenParts = GivenParts(),
    progress: ProgressCallback = silent,
) -> Rederivation:
    """Make a quantized file again in a temporary folder, and compare its bytes; nothing else is written.

    Raises:
        NotRederivableError: something decided the file that cannot be repeated here.
        StatementError: there is no statement, or it is damaged.
    """
    path = quantized_path(run, model)
    place = statement_path(path)
    if not place.is_file():
        raise StatementError(f"'{path}' has no statement: there is no '{place}'", hint=AGAIN)
    statement, found = read_statement(place), read_model(path)
    source = _Source.read(run, statement.predicate, given)
    about = _hashes(subjects(found, path.name))
    facts = [
        StatedFact(what="file", stated=_hashes(statement.subject), found=about),
        *source.facts(),
        *_report_facts(run, path, statement, found),
    ]
    result = Rederivation(model=path, statement=place, bytes=found.size, facts=tuple(facts))
    if not all(fact.holds for fact in source.facts()):
        return result
    with tempfile.TemporaryDirectory() as folder:
        exported = source.derive(Path(folder) / _name(path, found), progress)
        made = exported.model
        try:
            is_same = found.sha256 == made.sha256 and about == _hashes(subjects(made, path.name))
            differences = [] if is_same else list(file_differences(found, made))
        finally:
            made.discard()
    return replace(
        result,
        facts=(*facts, *_derived_facts(statement.predicate, exported.statement.predicate)),
        derived=True,
        by_runs=statement.predicate.by_runs,
        differences=tuple(differences[:MOST_DIFFERENCES]),
        more=len(differences[MOST_DIFFERENCES:]),
        other_versions=dict(_other_versions(statement.predicate, exported.statement.predicate)),
    )


def _hashes(artifacts: Iterable[Artifact]) -> str:
    """The hashes of files, whatever their names."""
    return " ".join(item.digest.sha256 for item in artifacts)


def _name(path: Path, model: StoredModel) -> str:
    """The name that a file had when it was written: it says where its constants are."""
    names = [item.name for item in model.data]
    return names[0].removesuffix(DATA_SUFFIX) if names else path.name


def _report_facts(
    run: RunDirectory, path: Path, statement: Statement, model: StoredModel
) -> Iterator[StatedFact]:
    """Yield what is said of the report, found in the run directory if it is there."""
    evaluation = statement.predicate.evaluation
    if evaluation is None:
        return
    said, found = f"{evaluation.report.digest.sha256} {evaluation.verdict}", ""
    about = (model.sha256, _hashes(statement.subject))
    for file in (run.report_json, run.of_model(path).report_json):
        if not file.is_file():
            continue
        report = read_document(Report, file)
        if report.model.quantized_model.sha256 in about:
            found = f"{sha256_file(file)} {report.verdict}"
            break
    yield StatedFact(what="report", stated=said, found=found)


def _derived_facts(stated: Derivation, made: Derivation) -> Iterator[StatedFact]:
    """Yield what is known only when a file was made again."""
    yield StatedFact(what="target", stated=stated.target, found=made.target)
    yield StatedFact(
        what="sources", stated=_hashes(stated.sources) or NOTHING, found=_hashes(made.sources) or NOTHING
    )
    yield StatedFact(
        what="decided by runs",
        stated=", ".join(stated.by_runs) or NOTHING,
        found=", ".join(made.by_runs) or NOTHING,
    )


def _other_versions(stated: Derivation, made: Derivation) -> Iterator[tuple[str, str]]:
    for name, version in stated.versions.items():
        now = made.versions.get(name, "missing")
        if now != version:
            yield name, f"{version}, now {now}"


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What a file is made again from."""

    run: RunDirectory
    stated: Derivation
    float_model: StoredModel
    calibration: Calibration
    statistics_sha256: str
    recipe: str
    recipe_folder: Path
    data: Path | None

    @classmethod
    def read(cls, run: RunDirectory, stated: Derivation, given: GivenParts) -> "_Source":
        for reason, why in _UNREPEATABLE.items():
            if reason in stated.by_runs:
                raise NotRederivableError(
                    f"the file cannot be made again: {why}", hint="its hashes can be compared: sha256sum"
                )
        statistics = given.statistics or run.require_stage(run.calibration, "ptq calibrate")
        content = read_file(statistics, "calibration")
        float_model = given.float_model or run.require_stage(run.float_model, "ptq calibrate")
        model = read_model(require_file(float_model, "float model"))
        if model.sha256 in _hashes(stated.sources) and model.sha256 != stated.float_model.digest.sha256:
            raise UsageError(
                f"'{float_model}' is what the float model was prepared from",
                hint=f"ptq export --float {float_model} -o float.onnx prepares it; pass --float float.onnx",
            )
        text = stated.recipe.text
        if given.recipe is not None:
            text = read_file(given.recipe, "recipe").decode("utf-8", "replace")
        return cls(
            run=run,
            stated=stated,
            float_model=model,
            calibration=parse_calibration(content, str(statistics)),
            statistics_sha256=hashlib.sha256(content).hexdigest(),
            recipe=text,
            recipe_folder=run.path if given.recipe is None else given.recipe.parent,
            data=given.data,
        )

    def facts(self) -> Iterator[StatedFact]:
        """Yield the hashes of the files that are here."""
        stated = self.stated
        for what, artifact, found in (
            ("float model", stated.float_model, self.float_model.sha256),
            ("statistics", stated.statistics, self.statistics_sha256),
            ("recipe", stated.recipe, sha256_text(self.recipe)),
        ):
            yield StatedFact(what=what, stated=artifact.digest.sha256, found=found)

    def derive(self, output: Path, progress: ProgressCallback) -> Exported:
        """Make the file again."""
        resolved, graph = self._resolved(), self.float_model.load()
        source = CalibratedModel(
            resolved=resolved,
            calibration=self.calibration,
            float_model=self.float_model,
            graph=graph,
            run=self.run,
            output=output,
            placed_by=self.stated.placement,
            progress=progress,
        )
        data = self._data(source) if self.stated.by_runs else None
        return make_export(source, data)

    def _resolved(self) -> Resolved:
        layer = table_layer(parse_toml(self.recipe), self.recipe_folder, "the statement's recipe")
        resolved = resolve(Request(settings={}, given=layer))
        if self.data is None:
            return resolved
        calibration = replace(resolved.recipe.calibration, data=str(self.data))
        return resolved.with_recipe(replace(resolved.recipe, calibration=calibration))

    def _data(self, source: CalibratedModel) -> RecoveryData:
        notes: list[str] = []

        def told(step: Progress) -> None:
            notes.extend(filter(None, [step.note]))
            source.progress(step)

        found = open_recovery_data(source.resolved, self.calibration, source.graph, self.float_model, told)
        if found is None:
            decided = " and ".join(self.stated.by_runs)
            raise NotRederivableError(
                f"running models on the calibration data decided {decided}, and the data cannot be read: "
                f"{notes[-1] if notes else 'the recipe names none'}",
                hint="name them with --data",
            )
        return found
