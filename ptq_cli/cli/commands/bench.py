"""``ptq bench``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.cli.help.help_sections import DATA, OWN, SectionCommand, option
from ptq_cli.cli.options import completion
from ptq_cli.cli.options.data_options import IMAGE, INPUT, INPUT_SHAPE, NAMES
from ptq_cli.cli.options.global_options import GLOBALS
from ptq_cli.cli.options.shared_options import PATH, RECIPES, RUN, THREADS, settings_from, take

if TYPE_CHECKING:
    from ptq_cli.pipeline.inspection.run_bench import BenchResult


@click.command(
    cls=SectionCommand,
    short_help="Compare the latency of models.",
    epilog="""\b
Examples:
  ptq bench
  ptq bench model.float.onnx model.int8.onnx --threads 1 --batch 8
  ptq bench model.onnx --data calib.npz --runs 200 --json
""",
)
@click.argument("models", nargs=-1, type=PATH)
@option(
    OWN, "--batch", type=int, metavar="N", help="Samples per run.  [default: 1, or the model's fixed size]"
)
@option(
    OWN,
    "--seconds",
    type=float,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Approximate time to measure.",
)
@option(OWN, "--runs", type=int, metavar="N", help="Number of runs of each model, instead of a time.")
@option(
    DATA,
    "--data",
    shell_complete=completion.complete_files,
    metavar="PATH",
    help="Input data.  [default: the data of the run or recipe; random without any, or with --input-shape]",
)
@take(INPUT, INPUT_SHAPE, NAMES, IMAGE, THREADS, RUN, RECIPES, GLOBALS)
def command(
    models: tuple[Path, ...],
    batch: int | None,
    seconds: float,
    runs: int | None,
    run: Path,
    recipe: Path | None,
    preset: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how long MODELS take to run.

    MODELS are ONNX files with the same inputs, by default the float and the quantized model of the run
    directory. The models take turns with a few runs each, and a different model begins each turn, so that a
    machine whose speed changes favours none of them. The ratio to the first model has a 95 % confidence
    interval. Inputs are samples of --data, or else of the data that the run of the models was calibrated on;
    without either, they are random. The output says which.
    """
    from ptq_cli.cli.shown.output import print_json
    from ptq_cli.cli.shown.progress_bar import shown_progress
    from ptq_cli.pipeline.inspection.run_bench import BenchOptions, run_bench
    from ptq_cli.pipeline.run.resolve import Request
    from ptq_cli.pipeline.run.run_directory import RunDirectory

    request = Request(settings=settings_from(options), model=None, recipe_file=recipe, preset=preset)
    with shown_progress() as progress:
        result = run_bench(request, RunDirectory(run), models, BenchOptions(batch, seconds, runs), progress)
    if as_json:
        print_json(_values(result))
    else:
        _print(result)


def _print(result: "BenchResult") -> None:
    from ptq_cli.cli.shown.output import print_table, say
    from ptq_cli.cli.shown.printable import as_typed
    from ptq_cli.report.text.numbers import format_latency
    from ptq_cli.report.text.summary import Table

    latency = result.latency
    names = [str(path) for path in result.models]
    threads = "1 thread" if latency.threads == 1 else f"{latency.threads} threads"
    rounds = f" in {latency.rounds} rounds" if latency.rounds > 1 else ""
    say(f"{threads}, batch {latency.batch}, {latency.turns:,} turns{rounds}")
    say(f"inputs: {', '.join(map(str, result.inputs))}, from {as_typed(result.data, Path.cwd())}")
    for fault in result.data_faults:
        say(f"note: data of the recipe were not used: {as_typed(fault, Path.cwd())}")
    rows = tuple(
        (
            name,
            *map(format_latency, (item.p50, item.p90, item.p99)),
            f"{item.samples_per_second:.4g}",
            f"{item.runs:,}",
        )
        for name, item in zip(names, latency.models, strict=True)
    )
    print_table(
        Table(("model", "p50", "p90", "p99", "samples/s", "runs"), rows),
        right=(1, 2, 3, 4, 5),
        whole=(1, 2, 3, 4, 5),
    )
    for name, ratio in zip(names[1:], latency.ratios, strict=True):
        interval = ratio.interval
        ends = f" (95 % interval {1 / interval.high:.3f} to {1 / interval.low:.3f})" if interval else ""
        say(f"{name} is {ratio.speed_up:.3f} times as fast as {names[0]}{ends}")
        say(f"in processor time: {1 / ratio.processor:.3f} times as fast")


def _values(result: "BenchResult") -> dict[str, Any]:
    from dataclasses import asdict

    latency = result.latency
    ratios = [None, *(asdict(ratio) for ratio in latency.ratios)]
    return {
        "data": result.data,
        "data_faults": list(result.data_faults),
        "inputs": [
            {"name": spec.name, "dtype": str(spec.dtype), "shape": list(spec.shape)} for spec in result.inputs
        ],
        "threads": latency.threads,
        "batch": latency.batch,
        "turns": latency.turns,
        "rounds": latency.rounds,
        "models": [
            {"model": str(path), **asdict(item), "ratio_to_first": ratio}
            for path, item, ratio in zip(result.models, latency.models, ratios, strict=True)
        ],
    }
