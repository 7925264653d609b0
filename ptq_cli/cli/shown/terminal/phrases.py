"""What lines about any result are made of: counts, paths, and the next command."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptq_cli.pipeline.run.run_directory import RunDirectory


def counted(number: int, noun: str) -> str:
    """Write a number and its noun.

    Example:
        >>> counted(1, "tensor"), counted(2, "tensor")
        ('1 tensor', '2 tensors')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def closeness(difference: float) -> str:
    """Write how far two outputs are apart, as a share of the largest output.

    Example:
        >>> closeness(2.4e-7), closeness(0.0)
        ('within 2e-07 of its largest output', 'exactly')
    """
    return f"within {difference:.1g} of its largest output" if difference else "exactly"


def shown_path(path: Path) -> str:
    """Return a path as a user would type it: relative if it is below the current folder."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)


def next_step(command: str, run: "RunDirectory", model: Path | None = None) -> str:
    """Return the next command; it names the run directory and the model where they are not the default.

    Example:
        >>> from ptq_cli.pipeline.run.run_directory import RunDirectory
        >>> next_step("ptq evaluate", RunDirectory(Path("b")), Path("w2.onnx"))
        'next: ptq evaluate w2.onnx --run b'
    """
    from ptq_cli.pipeline.run.run_directory import DEFAULT_RUN

    words = [command]
    if model is not None and os.path.realpath(model) != os.path.realpath(run.quantized_model):
        # A name that begins with a hyphen would be read as an option.
        words.append(shlex.quote(str(model) if not str(model).startswith("-") else f"./{model}"))
    if run.path != DEFAULT_RUN:
        words.append(f"--run {shlex.quote(str(run.path))}")
    return f"next: {' '.join(words)}"
