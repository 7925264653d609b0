"""The arguments of an API function as the request that the commands make from options."""

from pathlib import Path

from ptq_cli.pipeline.run.resolve import Request
from ptq_cli.recipe.flags import Settings

PathLike = str | Path


def request_of(
    settings: Settings, model: PathLike | None, recipe: PathLike | None, preset: str | None
) -> Request:
    """Return a request with settings by the names of their options."""
    return Request(
        settings=dict(settings),
        model=Path(model) if model is not None else None,
        recipe_file=Path(recipe) if recipe is not None else None,
        preset=preset,
    )


def as_path(path: PathLike | None) -> Path | None:
    """Return a path, or None if there is none."""
    return Path(path) if path is not None else None
