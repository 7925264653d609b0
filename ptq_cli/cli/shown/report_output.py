"""What ``evaluate`` and ``merge`` show of reports, and with which status they end."""

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptq_cli.cli.shown import result_lines as summaries
from ptq_cli.cli.shown.terminal.output import print_json, say, tell
from ptq_cli.cli.shown.terminal.step_summary import add_to_step_summary
from ptq_cli.cli.shown.terminal.warning_lines import warn_of_result
from ptq_cli.report.document.report_document import report_to_json
from ptq_cli.report.text.markdown import report_to_markdown

if TYPE_CHECKING:
    from ptq_cli.pipeline.evaluation.run_evaluation_shard import EvaluationShardResult
    from ptq_cli.pipeline.evaluation.written.made_reports import EvaluationResult

DONE = 0


def show_reports(results: "Sequence[EvaluationResult]", *, as_json: bool) -> int:
    """Print the reports of an evaluation, and return the status to exit with."""
    for result in results:
        add_to_step_summary(report_to_markdown(result.report))
    if as_json:
        values = [json.loads(report_to_json(result.report)) for result in results]
        print_json(values[0] if len(values) == 1 else {"reports": values})
    elif len(results) == 1:
        summaries.print_report(results[0].report)
        summaries.say_written(results[0].run)
    else:
        summaries.print_reports([result.report for result in results])
        for result in results:
            summaries.say_written(result.run)
    for result in [] if as_json else results:
        warn_of_result(result.report.all_warnings)
    return max(summaries.exit_status(result.report) for result in results)


def show_shard(result: "EvaluationShardResult", *, as_json: bool) -> int:
    """Print what was measured of one part of an evaluation, and return the status to exit with."""
    if as_json:
        print_json(
            {
                "run": str(result.run.path),
                "file": str(result.file),
                "samples": result.samples,
                "shard": result.shard,
            }
        )
        return DONE
    say(f"evaluated {summaries.counted(result.samples, result.unit)} of {result.shard}")
    say(f"wrote {summaries.shown_path(result.file)}")
    step = summaries.next_step(f"ptq merge {shlex.quote(str(result.run.path))}", result.run)
    tell(step.replace("next:", "next, with the other shards:", 1))
    return DONE
