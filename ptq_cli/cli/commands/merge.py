"""``ptq merge``."""

from pathlib import Path

import click

from ptq_cli.cli.help.help_sections import OWN, SectionCommand, option
from ptq_cli.cli.options.global_options import GLOBALS
from ptq_cli.cli.options.shared_options import PATH, RUN, take


@click.command(
    cls=SectionCommand,
    short_help="Combine the statistics of several shards.",
    epilog="""\b
Examples:
  ptq merge run-1 run-2 --run all
  ptq merge run-3 run-4 --partial --run run-3-4
""",
)
@click.argument("runs", nargs=-1, required=True, type=PATH)
@option(OWN, "--partial", is_flag=True, help="Allow missing shards; the result can be merged again.")
@take(RUN, GLOBALS)
def command(runs: tuple[Path, ...], partial: bool, run: Path, as_json: bool) -> None:
    """Combine the statistics in RUNS into one calibration.

    RUNS are run directories of ptq calibrate --shard, in any order. The result is the same, byte for byte, as
    from one calibration with all the data. It is an error if the runs differ in model, data or settings, if
    they overlap, or if a shard is missing.

    If all RUNS hold the same whole calibration and the moments of ptq calibrate --moments --shard, it is the
    moments that are combined.
    """
    from ptq_cli.cli.shown.output import print_json, tell
    from ptq_cli.cli.shown.result_lines import merge_values, next_step, print_merge
    from ptq_cli.pipeline.calibration.run_merge import run_merge
    from ptq_cli.pipeline.run.run_directory import RunDirectory

    result = run_merge([RunDirectory(path) for path in runs], RunDirectory(run), partial=partial)
    if as_json:
        print_json(merge_values(result))
        return
    print_merge(result)
    if not result.shards:
        tell(next_step("ptq export --onnx", result.run))
