"""The in-toto statement beside a quantized file: what it was made from, with what, and the gate's verdict.

Source:
    https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, and resource_descriptor.md there.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ptq_cli.calibration.provenance import HASH_PREFIX
from ptq_cli.collectors.calibration_file import Calibration, Provenance, calibration_bytes
from ptq_cli.core.documents import AtLeast, FileFormat, Matches, decode, strict_json, to_json
from ptq_cli.core.errors import ReportError, StatementError
from ptq_cli.core.read_files import read_file, sha256_file, sha256_text
from ptq_cli.evaluation.document.gate_result import Verdict
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.recipe.schema import Recipe
from ptq_cli.setup.run_directory import (
    RunDirectory,
    library_versions,
    plugin_versions,
    statement_path,
)

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://pypi.org/project/ptq-cli/quantization/v1"
AGAIN = "ptq export writes one beside each file; copy both"
UNFINISHED: str = "interrupted"  # decided by when a user stopped
OF_FOLDER: str = "folder"  # decided with other files
REPORT, COMPILER = "report.json", "numba"


@dataclass(frozen=True, kw_only=True)
class Digest:
    """Hashes of a file, by algorithm."""

    sha256: Annotated[str, Matches("[0-9a-f]{64}", "a SHA-256 in hexadecimal"), "In hexadecimal."]


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file: a resource descriptor of in-toto."""

    name: Annotated[str, "Its name."]
    digest: Annotated[Digest, "Its hash."]

    @classmethod
    def of(cls, name: str, sha256: str) -> "Artifact":
        """A file of this name and hash."""
        return cls(name=name, digest=Digest(sha256=sha256))


@dataclass(frozen=True, kw_only=True)
class StatedRecipe:
    """The settings that a file was made with."""

    name: Annotated[str, "Name of its file in a run directory."]
    digest: Annotated[Digest, "Hash of the text."]
    text: Annotated[str, "The resolved recipe in TOML; paths are relative to the run directory."]


@dataclass(frozen=True, kw_only=True)
class PlacementFacts:
    """What decides where layers compute, and is in no file that the quantized one is made from."""

    float_bytes: Annotated[
        Annotated[int, AtLeast(1)],
        "Size of the file that the float model came from: the result is not larger.",
    ]
    sample_shapes: Annotated[
        dict[str, tuple[int, ...]] | None,
        "Shape of one sample of each input; null if no calibration data were read.",
    ]


@dataclass(frozen=True, kw_only=True)
class StatedEvaluation:
    """The last evaluation of the file."""

    verdict: Annotated[Verdict, "Of the gate."]
    report: Annotated[Artifact, "Its report.json."]


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """What a quantized file was made from: the predicate of its statement."""

    target: Annotated[str, "The target's name."]
    float_model: Annotated[
        Artifact, "The prepared float model; of one above 2 GB the hash goes on with its data file."
    ]
    sources: Annotated[tuple[Artifact, ...], "The files that this was prepared from."]
    statistics: Annotated[Artifact, "The calibration."]
    recipe: Annotated[StatedRecipe, "The settings."]
    placement: Annotated[PlacementFacts, "What else decided where layers compute."]
    by_runs: Annotated[
        tuple[str, ...],
        "What was decided by running models (forms, ranges, float, round), by their times (latency), with "
        "other files (folder) or until Ctrl-C (interrupted); empty if the rest decides every byte.",
    ]
    versions: Annotated[dict[str, str], "Of ptq, of the libraries and of plug-ins, by name."]
    evaluation: Annotated[StatedEvaluation | None, "Null until ptq evaluate."] = None


class _InToto(FileFormat):
    """An in-toto statement, which says in keys of its own what it is."""

    @property
    def header(self) -> dict[str, Any]:
        """The keys that come first."""
        return {"_type": STATEMENT_TYPE, "predicateType": PREDICATE_TYPE}


@dataclass(frozen=True, kw_only=True)
class Statement:
    """An in-toto statement about a quantized file."""

    FORMAT: ClassVar[FileFormat] = _InToto(
        name="ptq.statement", version=1, noun="statement", error=StatementError, hint=AGAIN
    )

    subject: Annotated[tuple[Artifact, ...], "The quantized file, and the file of its constants if apart."]
    predicate: Annotated[Derivation, "What it was made from."]

    def content(self) -> bytes:
        """The file's bytes."""
        return to_json(self).encode()

    def in_folder(self, model: StoredModel, name: str) -> "Statement":
        """The same about a file whose constants lie in one that files of a folder share."""
        by_runs = tuple(dict.fromkeys((*self.predicate.by_runs, OF_FOLDER)))
        return replace(
            self, subject=subjects(model, name), predicate=replace(self.predicate, by_runs=by_runs)
        )

    def judged(self, report: Report) -> "Statement":
        """The same with the report of an evaluation."""
        found = StatedEvaluation(verdict=report.verdict, report=report_artifact(report))
        return replace(self, predicate=replace(self.predicate, evaluation=found))


def report_artifact(report: Report) -> Artifact:
    """The ``report.json`` of a report."""
    return Artifact.of(REPORT, sha256_text(to_json(report)))


def subjects(model: StoredModel, name: str) -> tuple[Artifact, ...]:
    """The files of a quantized model: its own, and that of its constants if they lie apart."""
    if not model.is_apart:
        return (Artifact.of(name, model.sha256),)
    graph = hashlib.sha256(model.content).hexdigest()
    data = tuple(Artifact.of(path.name, sha256_file(path)) for path in model.data)
    return (Artifact.of(name, graph), *data)


def statement_of(
    recipe: Recipe,
    run: RunDirectory,
    calibration: Calibration,
    placement: PlacementFacts,
    by_runs: Iterable[str],
    files: tuple[Artifact, ...],
) -> Statement:
    """The statement of a file that was made from a calibration, before it is evaluated."""
    text = recipe_to_toml(recipe, run.path)
    found = calibration.provenance
    predicate = Derivation(
        target=recipe.quantization.target,
        float_model=Artifact.of(run.float_model.name, found.model),
        sources=tuple(_sources(found)),
        statistics=Artifact.of(
            run.calibration.name, hashlib.sha256(calibration_bytes(calibration)).hexdigest()
        ),
        recipe=StatedRecipe(name=run.recipe.name, digest=Digest(sha256=sha256_text(text)), text=text),
        placement=placement,
        by_runs=tuple(by_runs),
        versions=stated_versions(recipe),
    )
    return Statement(subject=files, predicate=predicate)


def stated_versions(recipe: Recipe) -> dict[str, str]:
    """The versions of what decides a file's bytes."""
    return library_versions() | {COMPILER: version(COMPILER)} | plugin_versions(recipe, ())


def _sources(provenance: Provenance) -> Iterator[Artifact]:
    for key, sha256 in sorted(provenance.settings.items()):
        if key.startswith(HASH_PREFIX):
            yield Artifact.of(Path(key.removeprefix(HASH_PREFIX)).name, sha256)


def read_statement(path: Path) -> Statement:
    """The statement of a file.

    Raises:
        StatementError: it is damaged, or says something else than ``ptq export`` does.
    """
    return parse_statement(read_file(path, "statement"), path)


def parse_statement(content: bytes, path: Path) -> Statement:
    """The statement of a file's content; ``path`` is for messages."""
    try:
        table = strict_json(content)
    except (ValueError, RecursionError) as error:
        raise StatementError(f"statement '{path}' is not valid JSON: {error}", hint=AGAIN) from error
    kind = table.get("predicateType") if isinstance(table, dict) else None
    if kind != PREDICATE_TYPE:
        said = f"its predicateType is not '{PREDICATE_TYPE}'"
        raise StatementError(f"'{path}' is not a statement of ptq: {said}", hint=AGAIN)
    try:
        found: Statement = decode(Statement, table, "")
    except ReportError as error:
        raise StatementError(f"statement '{path}': {error.message}", hint=AGAIN) from error
    return found


def statement_beside(path: Path, model: StoredModel) -> tuple[Path, Statement] | None:
    """The statement beside a quantized file, if there is one of this very file that can be written again."""
    place = statement_path(path)
    if not place.is_file() or not os.access(place, os.W_OK) or not os.access(place.parent, os.W_OK):
        return None
    try:
        found = read_statement(place)
    except StatementError:
        return None  # The evaluation has nothing to add to it.
    about = [item.digest for item in found.subject]
    return (place, found) if about == [item.digest for item in subjects(model, path.name)] else None
