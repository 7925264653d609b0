"""``ptq report``."""

from pathlib import Path

import click

from ptq_cli.terminal.options.help_sections import OWN, SectionCommand, argument, option
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, RUN, refuse_options, take


@click.command(
    cls=SectionCommand,
    short_help="Write report.html again, or compare reports.",
    epilog="""\b
Examples:
  ptq report
  ptq report old.json ptq-run/report.json
  ptq report runs/* --page compare.html
  ptq report --card --base-model google/vit-base-patch16-224
""",
)
@argument("reports", type=PATH, nargs=-1, metavar="[REPORTS]...")
@option(
    OWN,
    "--metric",
    metavar="NAME",
    help="Metric that more than two reports are compared by.  [default: the first with labels]",
)
@option(OWN, "--page", type=PATH, metavar="FILE", help="Also write a page that compares them to this file.")
@option(OWN, "--card", is_flag=True, help="Write a model card for the hub beside the quantized model.")
@option(OWN, "--base-model", metavar="ID", help="With --card: the float model's name on the hub.")
@option(
    OWN,
    "--output",
    "-o",
    type=PATH,
    metavar="FILE",
    help="With --card: the card's file.  [default: README.md beside the quantized model]",
)
@take(RUN, GLOBALS)
def command(
    reports: tuple[Path, ...],
    metric: str | None,
    page: Path | None,
    card: bool,
    base_model: str | None,
    output: Path | None,
    run: Path,
    as_json: bool,
) -> None:
    """Write report.html again from the files in the run directory, or compare REPORTS. No model is run.

    ptq evaluate, ptq quantize, ptq analyze and ptq verify --answers write the page themselves. Without
    REPORTS, this command writes it for a run directory from another machine, or anew for a page that an
    earlier version of ptq wrote.

    REPORTS are two or more files report.json, or the run directories that hold them. For two reports, the
    metrics of the quantized models, size, latency, models, settings, data and versions are compared, and
    which layers run as integers; layers that got worse, if an analysis.json is next to both reports; and
    intervals of the changes from paired samples, if the evaluation data are the same.

    For more, a table has the accuracy, size and speed of each model, and says which models no other one
    beats. With --page, the same is drawn as charts, and for two reports also each layer.

    With --card, a model card is written: YAML that the hub reads, with each metric, and tables with
    intervals, hashes, the recipe and the processor. What was not measured is left out. A README.md that ptq
    did not write is not overwritten; in a card, what you write outside the marks stays.

    The exit status is 0 whatever changed. Use ptq gate --baseline to fail on a regression.
    """
    if not card:
        refuse_options(("base_model", "output"), "is for a model card", "add --card, or leave it out")
    if reports:
        refuse_options(("run", "card"), "is for one run", "leave REPORTS out, or --run and --card")
        _compare(reports, metric, page, as_json=as_json)
        return
    refuse_options(("metric", "page"), "is for REPORTS to compare", "name them: ptq report A B")
    from ptq_cli.folders.model_card import CardResult, run_card
    from ptq_cli.pipeline.evaluation.report_page import PageResult, run_page
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.terminal.output import print_json, say
    from ptq_cli.terminal.phrases import shown_path

    directory = RunDirectory(run)
    result: CardResult | PageResult
    if card:
        result = run_card(directory, output, base_model)
        path = result.card
    else:
        result = run_page(directory)
        path = result.page
    if as_json:
        print_json(result)
        return
    for note in result.notes:
        say(f"note: {note}")
    say(f"wrote {shown_path(path)}")


def _compare(reports: tuple[Path, ...], metric: str | None, page: Path | None, *, as_json: bool) -> None:
    from ptq_cli.pipeline.run_compare import run_compare_models
    from ptq_cli.shown.report_lines import print_comparison
    from ptq_cli.terminal.output import print_json, say
    from ptq_cli.terminal.phrases import shown_path

    result = run_compare_models(reports, metric, page)
    if as_json:
        print_json(result.changes if result.changes is not None else result.found)
        return
    print_comparison(result)
    if page is not None:
        say(f"wrote {shown_path(page)}")
