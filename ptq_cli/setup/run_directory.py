"""The files of a run, by name, and the versions of the packages that took part in it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ptq_cli import __version__
from ptq_cli.core.entry_points import AMAX_METHODS, METRICS, TARGETS, plugins
from ptq_cli.core.errors import MissingStageError
from ptq_cli.core.read_files import require_name
from ptq_cli.recipe.declaration import STATEMENT_SUFFIX
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import file_layer, merge_layers
from ptq_cli.recipe.schema import Recipe

if TYPE_CHECKING:
    from ptq_cli.evaluation.metrics.spec import MetricSpec


_OWN = "ptq-cli"
DISTRIBUTIONS = ("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "torch", "torchmetrics")
IN_PLACE_OF = {"onnxruntime": "onnxruntime-gpu"}  # what may be installed instead
FOR_MODULES = {"torch", "torchmetrics"}  # what an ONNX file does not need, and a report may lack


def library_versions() -> dict[str, str]:
    """The versions of ptq and of the libraries that decide what comes out."""
    # ptq's is that of the code that runs: a checkout on PYTHONPATH may hide one that is installed.
    return {_OWN: __version__} | {name: found for name in DISTRIBUTIONS if (found := _version(name))}


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # --help needs none of it

    try:
        return version(name)
    except PackageNotFoundError:
        if name in FOR_MODULES:
            return None
        if name not in IN_PLACE_OF:
            raise
        return version(IN_PLACE_OF[name])


def plugin_versions(recipe: Recipe, metrics: "Iterable[MetricSpec]") -> dict[str, str]:
    """The versions of the packages whose plug-ins a model was made and measured with, by name."""
    methods = {recipe.amax.method, recipe.amax.weight_method}
    methods |= {name for item in recipe.override for name in (item.amax, item.weight_amax) if name}
    used = {
        TARGETS: {recipe.quantization.target},
        AMAX_METHODS: methods,
        METRICS: {spec.metric for spec in metrics},
    }
    return {
        plugin.package: plugin.version
        for group, names in used.items()
        for plugin in plugins(group)
        if plugin.name in names
    }


DEFAULT_RUN: Path = Path("ptq-run")


def statement_path(model: Path) -> Path:
    """The file beside a quantized model that says what it was made from.

    Example:
        >>> statement_path(Path("ptq-run/model_int8.onnx")).name
        'model_int8.intoto.json'
    """
    return model.with_name(f"{model.name.removesuffix('.onnx')}{STATEMENT_SUFFIX}")


class RunFile:
    """A file of a run directory, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunDirectory", _kind: type) -> Path:
        """Its path."""
        return run.path / self._name


@dataclass(frozen=True)
class RunDirectory:
    """A folder with the outputs of each stage."""

    path: Path

    recipe = RunFile("recipe.toml")  # the resolved recipe
    float_model = RunFile("model.float.onnx")  # the float model, as ONNX, that everything was measured on
    calibration = RunFile("calibration.safetensors")  # the statistics
    checkpoint = RunFile("calibration.partial.safetensors")
    """The statistics so far, of a calibration that is not finished."""
    recovery_checkpoint = RunFile("recovery.round.partial.safetensors")
    """The layers that a recovery has chosen so far, if it is not finished."""
    evaluation_checkpoint = RunFile("evaluation.partial.safetensors")
    """What the metrics hold so far, of an evaluation that is not finished."""
    report_json = RunFile("report.json")  # the report for programs
    report_markdown = RunFile("report.md")  # the report for a pull request
    report_html = RunFile("report.html")  # the report as one page
    report_recipe = RunFile("report.toml")
    """The settings behind the report, from which all of it can be made again."""
    details = RunFile("details.json")  # what the page shows beside the report: the samples that changed
    junit = RunFile("junit.xml")  # the gates as test cases, for a CI server
    analysis = RunFile("analysis.json")  # where the quantized model loses, for programs
    devices = RunFile("devices.json")  # what devices without ptq gave for cases of the quantized model
    drift = RunFile("drift.json")  # how far new data lie from the calibration's, for programs
    drift_page = RunFile("drift.html")  # the same as one page
    model_location = RunFile("model.location")
    """Where the quantized model is, from here, if it was written elsewhere."""
    profile = RunFile("profile.json")  # times of operators on this machine, by which a tuning places layers
    tuning = RunFile("tune.json")  # what ``ptq tune`` tried and chose, for programs
    tuning_checkpoint = RunFile("tune.partial.json")
    """What was measured so far, of a tuning that is not finished."""

    def __post_init__(self) -> None:
        """Refuse a name that its files cannot have; see ``require_name``."""
        require_name(self.path)

    def __fspath__(self) -> str:
        """The folder's path, as documents write it."""
        return str(self.path)

    @property
    def quantized_model(self) -> Path:
        """The quantized model: named by the recipe that is there, or the only one that is."""
        # Here, because every command reads the names of the files, and these take numpy.
        from ptq_cli.recipe.schema import Recipe

        found = merge_layers([file_layer(self.recipe)]) if self.recipe.is_file() else Recipe()
        named = self.quantized_file(found)
        models = {name for file, name in self._own_models() if file.suffix != ".json"}
        # Earlier versions gave it another name, and a user may have written one of another form there.
        return self.path / models.pop() if len(models) == 1 else named

    def quantized_file(self, recipe: Recipe) -> Path:
        """Where the model of a recipe goes: its name says its form."""
        from ptq_cli.recipe.model_names import form_of, model_name

        return self.path / model_name(form_of(recipe))

    def discard_other_models(self, kept: Path) -> None:
        """Remove the run's models with other weights: whoever read one would not get ``kept``."""
        files = self._own_models()
        # A model that was written elsewhere leaves the run's own; a link may lead into the run all the same.
        if os.path.realpath(kept) in (os.path.realpath(file) for file, _ in files):
            for file, name in files:
                if name != kept.name:
                    file.unlink(missing_ok=True)
            self.model_location.unlink(missing_ok=True)

    def _own_models(self) -> list[tuple[Path, str]]:
        """The files of quantized models that are here, each with the name of its model."""
        # By ptq's own names alone: a run directory may hold models that a user put there.
        from ptq_cli.recipe.model_names import own_model

        found = ((file, own_model(file.name)) for file in sorted(self.path.glob("model[._]*")))
        return [(file, name) for file, name in found if name is not None]

    def evaluation_shard(self, shard: str) -> Path:
        """One part of an evaluation, such as ``2/8``."""
        return self.path / f"evaluation.shard-{shard.replace('/', '-of-')}.safetensors"

    def shard_checkpoint(self, file: Path) -> Path:
        """What was measured so far of a part of an evaluation that is not finished.

        Example:
            >>> run = RunDirectory(Path("ptq-run"))
            >>> run.shard_checkpoint(run.evaluation_shard("2/8")).name
            'evaluation.shard-2-of-8.partial.safetensors'
        """
        return file.with_name(f"{file.name.removesuffix('.safetensors')}.partial.safetensors")

    def evaluation_shards(self) -> list[Path]:
        """The parts of an evaluation that are here, in the order of their names."""
        return sorted(self.path.glob("evaluation.shard-*-of-*[0-9].safetensors"))

    def of_model(self, model: Path) -> "RunDirectory":
        """The folder of the reports of one of several quantized models: that of its file's name."""
        return RunDirectory(self.path / model.stem)

    def note_of(self, output: Path) -> dict[Path, bytes]:
        """The file that remembers where a model was written; none if that is in the run."""
        if os.path.realpath(output.parent) == os.path.realpath(self.path):
            return {}
        return {self.model_location: relative_location(str(output.absolute()), self.path).encode() + b"\n"}

    def model_elsewhere(self) -> Path | None:
        """Where the quantized model was written, if not here; it may be gone."""
        if not self.model_location.is_file():
            return None
        from ptq_cli.recipe.locations import resolve_location

        text = self.model_location.read_text(encoding="utf-8").strip()
        located = resolve_location(text, self.path.absolute())
        return Path(relative_location(located, Path.cwd()))

    def require_model(self) -> Path:
        """The quantized model, which is here or was written elsewhere."""
        own, elsewhere = self.quantized_model, self.model_elsewhere()
        if elsewhere is not None and elsewhere.is_file():
            return elsewhere
        if elsewhere is not None and not own.is_file():
            raise MissingStageError(
                f"'{elsewhere}', where the model of '{self.path}' was written, does not exist",
                hint="pass the model, or run ptq export first",
            )
        return self.require_stage(own, "ptq export")

    def require_stage(self, file: Path, command: str) -> Path:
        """Return ``file`` if an earlier stage wrote it."""
        if not file.is_file():
            raise MissingStageError(
                f"'{file}' does not exist: nothing was made in '{self.path}' with {command}",
                hint=f"run {command} first, or pass another run directory with --run",
            )
        return file
