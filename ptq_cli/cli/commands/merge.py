"""``ptq merge``."""

from pathlib import Path

import click

from ptq_cli.terminal.options.help_sections import OWN, RUNNING, SectionCommand, argument, option
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, TRUST_CODE, take

_DONE = 0


@click.command(
    cls=SectionCommand,
    short_help="Combine the shards of a calibration or an evaluation.",
    epilog="""\b
Examples:
  ptq merge run-1 run-2 --run all
  ptq merge run-3 run-4 --partial --run run-3-4
  ptq merge
  ptq merge fetched/*.safetensors
  ptq merge monday tuesday --run week
""",
)
@argument("runs", nargs=-1, type=PATH)
@option(OWN, "--partial", is_flag=True, help="Allow missing shards; the result can be merged again.")
@option(
    RUNNING,
    "--run",
    type=PATH,
    metavar="DIR",
    help="Run directory of the result.  [default: ptq-run; of an evaluation, where RUNS have its models]",
)
@take(TRUST_CODE, GLOBALS)
def command(runs: tuple[Path, ...], partial: bool, run: Path | None, as_json: bool) -> int:
    """Combine the statistics in RUNS into one calibration, or the shards of an evaluation into its reports.

    RUNS are run directories of ptq calibrate --shard, in any order. The result is the same, byte for byte, as
    from one calibration with all the data. It is an error if the runs differ in model, data or settings, if
    they overlap, or if a shard is missing. Whole calibrations of one model on different data become
    one calibration on all of them, with the other settings of the first run.

    If RUNS hold shards of ptq evaluate --shard, or are such files, the reports of one evaluation are written,
    in the run directory with the models. Without RUNS, the shards are those in the run directory. The command
    exits with status 3 if a limit fails.
    """
    from ptq_cli.pipeline.run_merge import evaluated_run, holds_evaluation
    from ptq_cli.setup.run_directory import DEFAULT_RUN

    inputs = runs or (run or DEFAULT_RUN,)
    if holds_evaluation(inputs):
        return _merge_evaluation(inputs, partial, run or evaluated_run(inputs).path, as_json)
    from ptq_cli.pipeline.run_merge import run_merge
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.export_lines import print_merge
    from ptq_cli.terminal.output import print_json, tell
    from ptq_cli.terminal.phrases import next_step

    merged = [RunDirectory(path) for path in runs]
    result = run_merge(merged, RunDirectory(run or DEFAULT_RUN), partial=partial)
    if as_json:
        print_json(result)
        return _DONE
    print_merge(result)
    if not result.shards:
        tell(next_step("ptq export --onnx", result.run))
    return _DONE


def _merge_evaluation(runs: tuple[Path, ...], partial: bool, run: Path, as_json: bool) -> int:
    from ptq_cli.core.errors import UsageError
    from ptq_cli.pipeline.run_merge import run_merge_evaluation
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.report_lines import show_reports
    from ptq_cli.terminal.progress_bar import shown_progress

    if partial:
        raise UsageError(
            "--partial merges calibrations, and these are shards of an evaluation",
            hint="leave --partial out, and name all shards: a report needs every sample",
        )
    with shown_progress() as progress:
        results = run_merge_evaluation(runs, RunDirectory(run), progress)
    return show_reports(results, as_json=as_json)
