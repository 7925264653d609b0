"""Options that every command takes; the ``ptq`` command itself imports no more than these."""

from ptq_cli.cli.help_sections import GLOBAL, option

JSON = option(GLOBAL, "--json", "as_json", is_flag=True, help="Print the result as JSON.")
DEBUG = option(
    GLOBAL, "--debug", is_flag=True, expose_value=False, help="Show the traceback if an error occurs."
)
TALK = (DEBUG,)
GLOBALS = (JSON, *TALK)
"""What every command takes; a group of commands takes ``TALK`` alone."""
