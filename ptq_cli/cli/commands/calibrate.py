"""``ptq calibrate``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.options import (
    BATCH_SIZE,
    HOW_IT_IS_COUNTED,
    SHARD,
    WHAT_IS_COUNTED,
    settings_from,
    take,
)


@click.command(
    short_help="Run a calibration set through MODEL once.",
    epilog="""\b
Examples:
  ptq calibrate model.pt --arch model.py:build --data calib.npz
  ptq calibrate model.onnx --data images/ --resize 256 --crop 224,224
  ptq calibrate model.onnx --data images/ --shard 2/8 --run run-2
  torchrun --nproc-per-node=4 -m ptq_cli -- calibrate --run all
""",
)
@take(WHAT_IS_COUNTED, BATCH_SIZE, SHARD, HOW_IT_IS_COUNTED)
def command(
    model: Path | None,
    shard: str | None,
    restart: bool,
    run: Path,
    recipe: Path | None,
    preset: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run the calibration set through MODEL once, and keep statistics.

    MODEL is a state dict (with --arch), a torch.export archive (.pt2), TorchScript, or ONNX. Without it, and
    for every flag that is left out, ./ptq.toml or --recipe tells. Every amax method works from the saved
    statistics afterwards, without running the model again.

    A calibration that was killed continues from its last checkpoint when it is run again. With --shard, or
    under torchrun, several processes share the work, and the result is the same to the last byte.
    """
    from ptq_cli.cli.shown.output import print_json, tell
    from ptq_cli.cli.shown.progress_bar import shown_progress
    from ptq_cli.cli.shown.result_lines import after_calibration, calibration_values, print_calibration
    from ptq_cli.pipeline.calibration.run_calibrate import run_calibrate
    from ptq_cli.pipeline.run.resolve import Request
    from ptq_cli.pipeline.run.run_directory import RunDirectory

    request = Request(settings=settings_from(options), model=model, recipe_file=recipe, preset=preset)
    with shown_progress() as progress:
        result = run_calibrate(request, RunDirectory(run), progress, shard=shard, restart=restart)
    if as_json:
        print_json(calibration_values(result))
        return
    print_calibration(result)
    tell(after_calibration(result))
