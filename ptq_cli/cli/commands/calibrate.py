"""``ptq calibrate``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import SectionCommand
from ptq_cli.terminal.options.model_options import (
    ARCH,
    CALIBRATION,
    METHOD,
    MODEL_ARGUMENT,
    RECOVER,
    RESTART,
    SHARD,
    TARGET,
)
from ptq_cli.terminal.options.shared_options import GLOBALS, RECIPES, RUN, once_from, request_from, take


@click.command(
    cls=SectionCommand,
    once=("restart",),
    short_help="Collect statistics from calibration data.",
    epilog="""\b
Examples:
  ptq calibrate model.pt --arch model.py:build --data calib.npz
  ptq calibrate model.onnx --data images/ --set image.resize=224,224
  ptq calibrate model.onnx --data images/ --shard 2/8 --run run-2
  torchrun --nproc-per-node=4 -m ptq_cli -- calibrate --run all
""",
)
@take(MODEL_ARGUMENT, CALIBRATION, ARCH, TARGET, METHOD, RECOVER, SHARD, RESTART, RUN, RECIPES, GLOBALS)
def command(
    model: Path | None, shard: str | None, restart: bool, run: Path, as_json: bool, **options: Any
) -> None:
    """Run the calibration data through MODEL once, and save the statistics of its tensors.

    MODEL is a state dict (with --arch), a torch.export archive (.pt2), a TorchScript file or an ONNX file. If
    MODEL or an option is not given, its value comes from --recipe or ./ptq.toml. Every amax method works from
    the saved statistics, without running the model again.

    A calibration that was interrupted continues from its last checkpoint when the command is run again.
    With --shard, or under torchrun, several processes share the work; the result is the same, byte for byte.
    """
    from ptq_cli.pipeline.run_calibrate import run_calibrate
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.export_lines import next_line, print_calibration
    from ptq_cli.terminal.output import print_json, tell
    from ptq_cli.terminal.progress_bar import shown_progress

    restart = restart or once_from(options).restart
    request = request_from(options, model)
    with shown_progress() as progress:
        result = run_calibrate(request, RunDirectory(run), progress, shard=shard, restart=restart)
    if as_json:
        print_json(result)
        return
    print_calibration(result)
    tell(next_line(result, "ptq export --onnx"))
