"""The arguments of an API function as the request that the commands make from options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ptq_cli.api.passed_objects import onnx_file, pass_data, pass_model
from ptq_cli.core.errors import UsageError
from ptq_cli.recipe.keyword_settings import Settings
from ptq_cli.setup.resolve import Request

PathLike = str | Path
ModelLike = PathLike | Any  # A file, a ``torch.nn.Module``, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
# Settings of the evaluation by the names that they have where there are no others.
EVALUATION_NAMES = {"data": "eval_data", "samples": "eval_samples"}


def request_of(
    settings: Settings, model: ModelLike | None, recipe: PathLike | None, preset: str | None
) -> Request:
    """A request with settings by the names of their options."""
    path, found = pass_model(model, settings)
    for name in ("data", "eval_data"):
        if name in found:
            found[name] = pass_data(found[name])
    if isinstance(values := found.get("input"), Mapping):
        found["input"] = {name: _plain(value) for name, value in values.items()}
    return Request(
        settings=found,
        model=path,
        recipe_file=Path(recipe) if recipe is not None else None,
        preset=preset,
    ).by_user()


def as_path(path: PathLike | None) -> Path | None:
    """A path, or None if there is none."""
    return Path(path) if path is not None else None


def _plain(value: Any) -> Any:
    """A number, an array or a tensor as the number or the lists that a recipe can hold."""
    return value.tolist() if hasattr(value, "tolist") else value


def evaluation_request(settings: Settings, recipe: PathLike | None, preset: str | None) -> Request:
    """A request of a function that reads evaluation data alone.

    ``data`` and ``samples`` mean ``eval_data`` and ``eval_samples``, as they do on the command line.

    Example:
        >>> evaluation_request({"samples": 8}, None, None).settings
        {'eval_samples': 8}
    """
    found = dict(settings)
    for name, meant in EVALUATION_NAMES.items():
        if name in found and meant in found:
            raise UsageError(
                f"'{name}' and '{meant}' are both given, and mean the same here", hint=f"give only '{meant}'"
            )
    renamed = {EVALUATION_NAMES.get(name, name): value for name, value in found.items()}
    return request_of(cast("Settings", renamed), None, recipe, preset)


def as_model_path(model: ModelLike | None) -> Path | None:
    """The path of an ONNX model, which is written if it is in memory; None if there is none."""
    return onnx_file(model) if model is not None else None
