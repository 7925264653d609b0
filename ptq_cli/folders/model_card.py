"""``ptq report --card``: the model card of a run's quantized model, or of a folder that was quantized."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any

import tomli_w

from ptq_cli.core.documents import read_document, strict_json
from ptq_cli.core.errors import ModelFolderError, PtqError, first_line
from ptq_cli.core.files import write_together
from ptq_cli.core.read_files import read_file, read_toml
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.folders.quantize_folder import SUMMARY, FolderResult
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.exported_file import quantized_metadata
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recipe.locations import map_locations
from ptq_cli.recipe.model_names import LOADER_DTYPES
from ptq_cli.report.text.card import CardModel, card_body, front_matter, placed_card, task_of
from ptq_cli.setup.output_checks import require_output
from ptq_cli.setup.run_directory import RunDirectory

CARD = "README.md"
CONFIG = "config.json"


@dataclass(frozen=True)
class CardResult:
    """What ``ptq report --card`` wrote."""

    card: Annotated[Path, "The card's file."]
    notes: Annotated[tuple[str, ...], "What it lacks, and why."]


def run_card(run: RunDirectory, output: Path | None = None, base_model: str | None = None) -> CardResult:
    """Write the model card of a run's model, or of the folder that the run quantized.

    It lies beside what it is about, unless ``output`` names another file. No model is run.

    Raises:
        OutputFileError: there is a file already that is no card of ptq.
    """
    folder, made = _made(run)
    card = output or folder / CARD
    found = [_card_model(path, own, folder) for path, own in made]
    models, notes = [item for item, _ in found], [note for _, note in found if note]
    name = base_model.rpartition("/")[2] if base_model else _name(folder, made[0][0])
    front = front_matter(models, name, base_model, task_of(read_config(folder)))
    require_output(card, {})
    # Whatever bytes a user wrote outside the marks stay.
    existing = card.read_text(encoding="utf-8", errors="surrogateescape") if card.is_file() else None
    text = placed_card(front, card_body(models, name), existing, str(card))
    write_together({card: text.encode(errors="surrogateescape")})
    if base_model is None:
        notes.append("base_model is left out: --base-model gives the float model's name on the hub")
    return CardResult(card, tuple(notes))


def read_config(folder: Path) -> dict[str, Any]:
    """What ``config.json`` of a folder of the hub says; empty if there is none."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    try:
        told = strict_json(read_file(path, "configuration"))
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(
            f"'{path}' is not valid JSON: {first_line(error)}", hint="copy or save it again"
        ) from error
    return told if isinstance(told, dict) else {}


def _name(folder: Path, model: Path) -> str:
    return folder.resolve().name if model.parent != folder else model.stem


def _made(run: RunDirectory) -> tuple[Path, list[tuple[Path, RunDirectory]]]:
    """The folder of what was quantized, and its models with the run directory of each."""
    summary = run.path / SUMMARY
    if not summary.is_file() or (run.recipe.is_file() and _time(run.recipe) > _time(summary)):
        model = run.require_model()
        return model.parent, [(model, run)]
    told = _summary(summary)
    made = [(Path(item["output"]), RunDirectory(Path(item["run"]))) for item in told["files"]]
    missing = next((path for path, _ in made if not path.is_file()), None)
    if missing is not None:
        raise ModelFolderError(f"'{missing}' does not exist any more", hint=FolderResult.FORMAT.hint)
    return Path(told["output"]), made


def _time(path: Path) -> float:
    return path.stat().st_mtime


def _summary(path: Path) -> Mapping[str, Any]:
    """The summary of a folder, of which only the places are read."""
    try:
        told = strict_json(read_file(path, FolderResult.FORMAT.noun))
        if told["format_version"] == FolderResult.FORMAT.version and told["files"]:
            return {
                "output": str(told["output"]),
                "files": [{key: str(item[key]) for key in ("output", "run")} for item in told["files"]],
            }
        found = f"it has format version {str(told['format_version'])[:40]}"
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        found = f"it is damaged: {first_line(error)}"
    raise ModelFolderError(f"summary '{path}': {found}", hint=FolderResult.FORMAT.hint)


def _card_model(path: Path, run: RunDirectory, folder: Path) -> tuple[CardModel, str]:
    stored = read_model(path)
    metadata = quantized_metadata(stored, path)
    report, note = _report(run, path, stored, metadata)
    is_loaded = path.parent != folder and (folder / CONFIG).is_file()
    made = CardModel(
        file=Path(os.path.relpath(path, folder)),
        bytes=stored.size,
        sha256=stored.sha256,
        metadata=metadata,
        report=report,
        recipe=_recipe(run.report_recipe if report is not None else run.recipe),
        dtype=LOADER_DTYPES.get(path.stem.rpartition("_")[2]) if is_loaded else None,
    )
    return made, note


def _recipe(path: Path) -> str:
    """The settings that a recipe has, each file by its name alone: where it lies is the user's own."""
    if not path.is_file():
        return ""
    table = map_locations(read_toml(path, "recipe", str(path)), lambda text: PurePath(text).name)
    return tomli_w.dumps(_without_empty(table))


def _without_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _without_empty(item) if isinstance(item, dict) else item for key, item in table.items()}
    return {key: item for key, item in found.items() if item not in ({}, [], "")}


def _report(
    run: RunDirectory, path: Path, stored: StoredModel, metadata: Mapping[str, str]
) -> tuple[Report | None, str]:
    """The report of a model, or why there is none of it as it is now."""
    if not run.report_json.is_file():
        return None, f"'{path}' was not evaluated, so the card has no metrics: ptq evaluate measures them"
    try:
        report = read_document(Report, run.report_json)
    except PtqError as error:
        return None, f"the metrics of '{path}' are left out: {error.message}"
    is_same = report.model.quantized_model.sha256 == stored.sha256
    # Models that share constants were evaluated before these went into one file.
    is_of_float = metadata.get(MetadataKey.FLOAT_SHA256) == report.model.float_model.sha256
    if not is_same and not (stored.data and is_of_float):
        return None, f"the metrics of '{path}' are left out: '{run.report_json}' is of another model"
    return report, ""
