"""``ptq calibrate``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.options import (
    BATCH_SIZE,
    CALIBRATION,
    IMAGE,
    JSON,
    MODEL,
    MODEL_ARGUMENT,
    RECIPES,
    RUN,
    TARGET,
    THREADS,
    settings_from,
    take,
)


@click.command(
    short_help="Run a calibration set through MODEL once.",
    epilog="""\b
Examples:
  ptq calibrate model.pt --arch model.py:build --data calib.npz
  ptq calibrate model.onnx --data images/ --resize 256 --crop 224,224
""",
)
@take(MODEL_ARGUMENT, CALIBRATION, BATCH_SIZE, MODEL, IMAGE, TARGET, THREADS, RUN, RECIPES, JSON)
def command(
    model: Path | None, run: Path, recipe: Path | None, preset: str | None, as_json: bool, **options: Any
) -> None:
    """Run the calibration set through MODEL once, and keep statistics.

    MODEL is a state dict (with --arch), a torch.export archive (.pt2), TorchScript, or ONNX. Without it, and
    for every flag that is left out, ./ptq.toml or --recipe tells. Every amax method works from the saved
    statistics afterwards, without running the model again.
    """
    from ptq_cli.cli.output import print_json, tell
    from ptq_cli.cli.progress import shown_progress
    from ptq_cli.cli.summaries import calibration_values, next_step, print_calibration
    from ptq_cli.pipeline.calibrate import run_calibrate
    from ptq_cli.pipeline.resolve import Request
    from ptq_cli.pipeline.run_directory import RunDirectory

    request = Request(settings_from(options), model, recipe, preset)
    with shown_progress() as progress:
        result = run_calibrate(request, RunDirectory(run), progress)
    if as_json:
        print_json(calibration_values(result))
        return
    print_calibration(result)
    tell(next_step("ptq export --onnx", RunDirectory(run)))
