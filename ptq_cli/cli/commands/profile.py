"""``ptq profile``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.help_sections import DATA, MODEL, OWN, SectionCommand, option
from ptq_cli.cli.options import completion
from ptq_cli.cli.options.completion import complete_names
from ptq_cli.cli.options.data_options import MODEL_ARGUMENT, MODEL_SOURCE, READING
from ptq_cli.cli.options.shared_options import GLOBALS, PATH, RECIPES, THREADS, request_from, take


@click.command(
    cls=SectionCommand,
    short_help="Measure a model's operators on this machine.",
    epilog="""\b
Examples:
  ptq profile model.onnx -o this-machine.json
  ptq profile model.onnx --data calib.npz --serve-batch 8 --threads 2 -o server.json
  ptq export --prefer latency --set export.profile=server.json
""",
)
@option(OWN, "--output", "-o", type=PATH, required=True, metavar="FILE", help="Output file.")
@option(OWN, "--serve-batch", type=int, metavar="N", help="Samples per run.  [default: 1]")
@option(
    MODEL,
    "--target",
    shell_complete=complete_names(completion.targets, or_files=True),
    metavar="NAME|FILE.TOML",
    help="Target whose placement rules apply.  [default: ort-cpu]",
)
@option(
    DATA,
    "--data",
    shell_complete=completion.complete_files,
    metavar="PATH",
    help="Data to run the model on.  [default: random inputs]",
)
@take(MODEL_ARGUMENT, MODEL_SOURCE, READING, THREADS, RECIPES, GLOBALS)
def command(output: Path, model: Path | None, as_json: bool, **options: Any) -> None:
    """Measure how long each operator of MODEL takes on this machine, in float and in integers.

    ptq export --prefer latency --set export.profile=FILE then keeps the layers in float that run faster so
    here, on whichever machine it runs. Give --serve-batch and --threads the values that the model is served
    with: other values have another fastest placement. The machine should do nothing else meanwhile.
    """
    from ptq_cli.cli.shown.export_lines import latency_line
    from ptq_cli.cli.terminal.output import print_json, say
    from ptq_cli.cli.terminal.phrases import shown_path
    from ptq_cli.cli.terminal.progress_bar import shown_progress
    from ptq_cli.pipeline.run_profile import run_profile

    request = request_from(options, model)
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
