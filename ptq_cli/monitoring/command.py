"""``ptq drift``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import DATA, EVALUATION, OWN, SectionCommand, argument, option
from ptq_cli.terminal.options.shared_options import GLOBALS, RECIPES, RUN, request_from, take


@click.command(
    cls=SectionCommand,
    short_help="Compare new data with those of the calibration.",
    epilog="""\b
Examples:
  ptq drift today.npz
  ptq drift today.npz --inputs-only
  ptq drift today.npz --max-clipped 0.1% --min-expected-sqnr 25
""",
)
@argument("data")
@option(OWN, "--inputs-only", is_flag=True, help="Look at the model's inputs only, and run no model.")
@option(
    OWN,
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of rows to show.",
)
@option(DATA, "--samples", type=int, metavar="N", help="Number of samples.  [default: all]")
@option(
    EVALUATION,
    "--max-clipped",
    metavar="X",
    help="Exit with status 3 if more than this share of a tensor's values is clipped: 0.001, 0.1%.",
)
@option(
    EVALUATION,
    "--min-expected-sqnr",
    type=float,
    metavar="DB",
    help="Exit with status 3 if the SQNR expected from rounding and clipping is lower.",
)
@take(RUN, RECIPES, GLOBALS)
def command(
    data: str,
    inputs_only: bool,
    top: int,
    samples: int | None,
    max_clipped: str | None,
    min_expected_sqnr: float | None,
    run: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare DATA, such as the inputs of a day, with those of a calibration, and write drift.json and .html.

    The float model runs on DATA. For each quantized tensor, the command shows how far its histogram has moved
    since the calibration, how far chance alone would move it, and the share of values that is clipped. The
    expected SQNR follows from the rounding and clipping of all tensors.

    Exits with status 3 if a tensor has moved by at least one step of 8 bits and further than chance explains,
    or, if there are limits, if one of them is exceeded; also if new values are NaN or infinite.
    """
    from ptq_cli.core.process import DONE
    from ptq_cli.monitoring.compared_drift import Limits
    from ptq_cli.monitoring.run_drift import DriftOptions, parse_share, run_drift
    from ptq_cli.monitoring.terminal_tables import print_drift
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.report_lines import GATE_MISSED
    from ptq_cli.terminal.output import print_json
    from ptq_cli.terminal.progress_bar import shown_progress

    limits = Limits(
        max_clipped=parse_share(max_clipped) if max_clipped is not None else None,
        min_expected_sqnr=min_expected_sqnr,
    )
    asked = DriftOptions(samples=samples, inputs_only=inputs_only, limits=limits)
    with shown_progress() as progress:
        result = run_drift(request_from(options), RunDirectory(run), data, asked, progress)
    if as_json:
        print_json(result.drift)
    else:
        print_drift(result, top)
    return GATE_MISSED if result.drift.verdict == "fail" else DONE
