"""``ptq merge``."""

from pathlib import Path

import click

from ptq_cli.cli.options import JSON, PATH, RUN, take


@click.command(
    short_help="Put the runs of several shards together.",
    epilog="""\b
Examples:
  ptq merge run-1 run-2 --run all
  ptq merge run-3 run-4 --partial --run run-3-4
""",
)
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--partial", is_flag=True, help="Allow shards to be missing; the result is a part as well.")
@take(RUN, JSON)
def command(runs: tuple[Path, ...], partial: bool, run: Path, as_json: bool) -> None:
    """Put the RUNS of several shards together.

    RUNS are run directories of ptq calibrate --shard, in any order. What is written is what one calibration
    of the whole set would have written, to the last byte. Runs that differ in model, data or settings, that
    overlap or that leave a shard out are refused.
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
