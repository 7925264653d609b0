"""Which shards of an evaluation ``merge`` is given, and whose they are."""

from collections.abc import Sequence
from pathlib import Path

from ptq_cli.core.errors import IncompleteEvaluationError
from ptq_cli.pipeline.run.run_directory import DEFAULT_RUN, RunDirectory

SUFFIX = ".safetensors"


def holds_evaluation(inputs: Sequence[Path]) -> bool:
    """Return whether shards of an evaluation are to be merged, and not those of a calibration.

    Args:
        inputs: run directories, or files of shards.

    Edge case:
        A file that is missing counts by its name, and is named when it is read.

    Example:
        >>> holds_evaluation([Path("no-such-run")]), holds_evaluation([Path("no-such-shard.safetensors")])
        (False, True)
    """
    return any(_is_file(path) or RunDirectory(path).evaluation_shards() for path in inputs)


def shard_files(inputs: Sequence[Path]) -> list[Path]:
    """Return the files of all shards.

    Raises:
        IncompleteEvaluationError: a run directory holds none, and others do.
    """
    files: list[Path] = []
    for path in inputs:
        found = [path] if _is_file(path) else RunDirectory(path).evaluation_shards()
        if not found:
            raise IncompleteEvaluationError(
                f"'{path}' holds no shard of an evaluation, and others do",
                hint="name the runs of ptq evaluate --shard; to merge calibrations or moments, remove the "
                "evaluation.shard files of earlier evaluations from the other runs",
            )
        files += found
    return files


def evaluated_run(inputs: Sequence[Path]) -> RunDirectory:
    """Return the run directory whose models the shards are of: the first that has models beside its shards.

    Args:
        inputs: run directories, or files of shards.

    Edge case:
        The default one, if the shards lie where no models are, as those do that were fetched.

    Example:
        >>> evaluated_run([Path("no-such-run")]).path.as_posix()
        'ptq-run'
    """
    runs = [RunDirectory(path.parent if _is_file(path) else path) for path in inputs]
    return next((run for run in runs if run.float_model.is_file()), RunDirectory(DEFAULT_RUN))


def _is_file(path: Path) -> bool:
    return path.name.endswith(SUFFIX) and not path.is_dir()
