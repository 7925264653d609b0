"""``ptq profile``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import OWN, SectionCommand, option
from ptq_cli.terminal.options.model_options import (
    MODEL_ARGUMENT,
    MODEL_SOURCE,
    READING,
    TARGET,
    THREADS,
    data_option,
    setting,
)
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, RECIPES, request_from, take


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
@setting(OWN, "export.serve_batch", default="1")
@data_option("Data to run the model on.  [default: random inputs]")
@take(MODEL_ARGUMENT, MODEL_SOURCE, TARGET, READING, THREADS, RECIPES, GLOBALS)
def command(output: Path, model: Path | None, as_json: bool, **options: Any) -> None:
    """Measure how long each operator of MODEL takes on this machine, in float and in integers.

    ptq export --prefer latency --set export.profile=FILE then keeps the layers in float that run faster so
    here, on whichever machine it runs. Give --serve-batch and --threads the values that the model is served
    with: other values have another fastest placement. The machine should do nothing else meanwhile.
    """
    from ptq_cli.latency.run_profile import run_profile
    from ptq_cli.shown.export_lines import latency_line
    from ptq_cli.terminal.output import print_json, say
    from ptq_cli.terminal.phrases import shown_path
    from ptq_cli.terminal.progress_bar import shown_progress

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
