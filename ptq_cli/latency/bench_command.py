"""``ptq bench``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import OWN, RUNNING, SectionCommand, argument, option
from ptq_cli.terminal.options.model_options import data_option
from ptq_cli.terminal.options.shared_options import (
    GLOBALS,
    PATH,
    RECIPES,
    RUN,
    refuse_options,
    request_from,
    take,
)

OF_LATENCY = ("seconds", "runs", "profile", "top", "runtimes", "accuracy_levels", "run")


@click.command(
    cls=SectionCommand,
    short_help="Compare the latency of models, or measure operators.",
    epilog="""\b
Examples:
  ptq bench
  ptq bench float.onnx int8.onnx other.onnx --batch 1 --batch 8 --threads 1 --threads 2
  ptq bench float.onnx int8.onnx --profile --top 10
  ptq bench --operators model.onnx --data calib.npz --batch 8 --threads 2 -o server.json
  ptq export --prefer latency --set export.profile=server.json
""",
)
@argument("models", nargs=-1, type=PATH)
@option(
    OWN,
    "--batch",
    "batches",
    type=int,
    multiple=True,
    metavar="N",
    help="Samples per run. Can be repeated.  [default: 1, or the model's fixed size]",
)
@option(
    OWN,
    "--seconds",
    type=float,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Approximate time to measure each batch size and number of threads.",
)
@option(OWN, "--runs", type=int, metavar="N", help="Number of runs of each model, instead of a time.")
@option(OWN, "--profile", is_flag=True, help="Also measure how long each operator takes.")
@option(
    OWN,
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --profile, also list the N slowest nodes.",
)
@option(
    OWN,
    "--operators",
    is_flag=True,
    help="Write how long each operator of one model takes in float and in integers, for ptq export.",
)
@option(OWN, "--output", "-o", type=PATH, metavar="FILE", help="Output file of --operators.")
@data_option(
    "Input data.  [default: the data of the run or recipe; random without any, or with model.input_shape]"
)
@option(
    RUNNING,
    "--threads",
    "threads",
    type=int,
    multiple=True,
    metavar="N",
    help="Number of threads; 0 for one per core. Can be repeated.  [default: 0]",
)
@option(
    RUNNING,
    "--runtime",
    "runtimes",
    multiple=True,
    metavar="NAME",
    help="Runtime: onnxruntime or openvino. Can be repeated.  "
    "[default: that of the target that the models were quantized for]",
)
@option(
    RUNNING,
    "--accuracy-level",
    "accuracy_levels",
    type=int,
    multiple=True,
    metavar="N",
    help="Accuracy level at which weights in blocks are computed: 0 in float, 4 with activations of 8 bits. "
    "Can be repeated.  [default: 4 and 0 if a model has such weights]",
)
@take(RUN, RECIPES, GLOBALS)
def command(
    models: tuple[Path, ...],
    batches: tuple[int, ...],
    seconds: float,
    runs: int | None,
    profile: bool,
    top: int | None,
    operators: bool,
    output: Path | None,
    threads: tuple[int, ...],
    runtimes: tuple[str, ...],
    accuracy_levels: tuple[int, ...],
    run: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how long MODELS take to run.

    MODELS are ONNX files with the same inputs, by default the float and the quantized model of the run
    directory. The models take turns, a few runs at a time, so that a machine whose speed changes favors none
    of them, and are opened several times. The speed relative to the first model is that of the fast runs,
    with a 95 % confidence interval. The output says which inputs were used.

    With several batch sizes, numbers of threads or runtimes, each of them is measured with each of the
    others. --profile shows what every model spends its time on, by the operators of its graph.

    With --operators, each operator of one model, of any kind, is measured in float and in integers, by
    default of the recipe's, and written to a file. ptq export --prefer latency --set export.profile=FILE then
    keeps the layers in float that run faster so here, on whichever machine it runs. Give --batch and
    --threads the values that the model is served with: other values have another fastest placement. The
    machine should do nothing else meanwhile.
    """
    from ptq_cli.core.errors import UsageError
    from ptq_cli.latency.bench_tables import print_bench, warn_of_saturation
    from ptq_cli.latency.run_bench import BenchOptions, run_bench
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.terminal.output import print_json
    from ptq_cli.terminal.progress_bar import shown_progress

    if operators:
        refuse_options(OF_LATENCY, "is not for --operators", "leave it out")
        _measure_operators(models, batches, threads, options, output, as_json=as_json)
        return
    refuse_options(("output",), "is for the file of --operators", "ptq bench --operators MODEL -o FILE")
    if top is not None and not profile:
        raise UsageError("--top lists the slowest nodes of --profile", hint=f"--profile --top {top}")
    request = request_from(options)
    asked = BenchOptions(
        batches=batches,
        threads=threads,
        seconds=seconds,
        runs=runs,
        profile=profile,
        runtimes=runtimes,
        accuracy_levels=accuracy_levels,
    )
    with shown_progress() as progress:
        result = run_bench(request, RunDirectory(run), models, asked, progress)
    if as_json:
        print_json(result)
    else:
        print_bench(result, top or 0)
    warn_of_saturation(result)


def _measure_operators(
    models: tuple[Path, ...],
    batches: tuple[int, ...],
    threads: tuple[int, ...],
    options: dict[str, Any],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    from ptq_cli.core.errors import UsageError
    from ptq_cli.latency.bench_tables import latency_line
    from ptq_cli.latency.measure_profile import run_profile
    from ptq_cli.terminal.output import print_json, say
    from ptq_cli.terminal.phrases import shown_path
    from ptq_cli.terminal.progress_bar import shown_progress

    if output is None:
        raise UsageError("--operators needs an output file", hint="ptq bench --operators MODEL -o FILE")
    if max(map(len, (models, batches, threads))) > 1:
        raise UsageError(
            "--operators measures one model, with one --batch and one --threads",
            hint="run the command once for each",
        )
    served = {"serve_batch": batches[0] if batches else None, "threads": threads[0] if threads else None}
    request = request_from({**options, **served}, models[0] if models else None)
    with shown_progress() as progress:
        result = run_profile(request, output, progress)
    profile = result.profile
    if as_json:
        print_json(result)
        return
    for note in result.notes:
        say(f"note: {note}")
    say(latency_line(profile.floating, profile.integer, result.expected, profile.batch, profile.threads))
    say(f"wrote {shown_path(output)}")
