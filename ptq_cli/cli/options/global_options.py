"""Options that every command takes; the ``ptq`` command itself imports no more than these."""

from ptq_cli.cli.help.help_sections import GLOBAL, option
from ptq_cli.cli.shown.terminal.quiet_flag import keep_quiet

JSON = option(GLOBAL, "--json", "as_json", is_flag=True, help="Print the result as JSON.")
DEBUG = option(
    GLOBAL, "--debug", is_flag=True, expose_value=False, help="Show the traceback if an error occurs."
)
QUIET = option(
    GLOBAL,
    "--quiet",
    "-q",
    is_flag=True,
    expose_value=False,
    callback=keep_quiet,
    help="Print only the result, warnings and errors; of a file that is written, only its path and the "
    "verdict.",
)
TALK = (QUIET, DEBUG)
GLOBALS = (JSON, *TALK)
"""What every command takes; a group of commands takes ``TALK`` alone."""
