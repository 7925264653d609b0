"""The ``ptq`` command: finds a subcommand, runs it, turns errors into exit statuses; one rank prints."""

import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import click

from ptq_cli import __version__
from ptq_cli.core.errors import (
    EntryPointError,
    InputFileError,
    InvalidOnnxError,
    NoMemoryError,
    PtqError,
    RanksError,
    UsageError,
)
from ptq_cli.core.process import (
    DONE,
    TERMINATED,
    claim_process,
    end_as_interrupted,
    interrupt_status,
    keep_streams,
)
from ptq_cli.core.trust import own_grants
from ptq_cli.core.words import did_you_mean
from ptq_cli.setup.ranks import find_ranks, require_single
from ptq_cli.terminal.options.help_sections import SectionGroup
from ptq_cli.terminal.options.shared_options import DEBUG, QUIET
from ptq_cli.terminal.phrases import as_typed, printable

_SHARED = ("calibrate", "evaluate", "tune")  # Commands whose work is divided among the processes


@contextlib.contextmanager
def only_first_rank_prints(*, debug: bool) -> Iterator[None]:
    """Let only the first of several processes print inside the block, and end all of them after it.

    ``debug`` lets all of them write to stderr.
    """
    try:
        ranks = find_ranks(os.environ)
    except RanksError:  # The command reports it, on all ranks, because this process cannot tell its rank.
        ranks = None
    if ranks is None:
        yield
        return
    from ptq_cli.setup.ranks import part_together

    with contextlib.ExitStack() as stack:
        stack.callback(part_together, ranks)
        if not ranks.is_first:
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            if not debug:
                stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield


COMMANDS = (
    "calibrate",
    "export",
    "evaluate",
    "quantize",
    "tune",
    "analyze",
    "inspect",
    "verify",
    "repair",
    "bench",
    "drift",
    "merge",
    "gate",
    "report",
    "recipe",
)
# Where a command is that is not in ``cli.commands``, in a file of its name.
MODULES = {
    "analyze": "analysis.command",
    "bench": "latency.bench_command",
    "drift": "monitoring.command",
    "repair": "repair.command",
    "tune": "tuning.command",
}
CONTINUED = ("calibrate", "quantize", "export", "evaluate", "tune")  # Commands that write checkpoints
BUG = 1
# What the system says of an allocation, the loader of a library, Python of a thread, C++ of an object.
_OUT_OF_MEMORY = ("cannot allocate memory", "failed to map segment", "can't start new thread", "bad_alloc")
DEBUG_FLAG = "--debug"
# Set by a shell that completes a command; see click's documentation on shell completion.
COMPLETION_VARIABLE = "_PTQ_COMPLETE"


class LazyGroup(SectionGroup):
    """Imports a subcommand's file only when it is needed, which keeps ``ptq --help`` fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order in which they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, or None if there is none with that name."""
        if cmd_name not in COMMANDS:
            return None
        name = MODULES.get(cmd_name, f"cli.commands.{cmd_name}")
        module = importlib.import_module(f"ptq_cli.{name}")
        command: click.Command = module.command
        return command


def _show_version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    from ptq_cli.core.entry_points import plugin_lines

    click.echo("\n".join([f"ptq, version {__version__}", *map(printable, plugin_lines())]))
    context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"max_content_width": 100},
    epilog="""\b
Example:
  cd sample_models/cifar10_cnn
  ptq calibrate model.pt --method histogram
  ptq export --onnx
  ptq evaluate --max-drop top1=0.01

Exit status: 0 done, 1 bug in ptq, 2 usage, recipe or input error, 3 gate failed, 130 interrupted by Ctrl-C,
143 by SIGTERM.""",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and the installed plug-ins, and exit.",
)
@QUIET
@DEBUG
def cli() -> None:
    """Quantize a trained model, and measure what that costs in accuracy.

    Calibrate once, export an ONNX model with QuantizeLinear and DequantizeLinear, evaluate it, and fail a
    build if it has lost too much accuracy.
    """
    command = click.get_current_context().invoked_subcommand
    if command not in _SHARED:
        require_single(find_ranks(os.environ), f"ptq {command}")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``ptq`` and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    claim_process()
    keep_streams()
    end_as_interrupted()
    with only_first_rank_prints(debug=DEBUG_FLAG in words):
        status = run(words)
    sys.exit(status)


def run(words: list[str]) -> int:
    """Run ``ptq`` with the given words, and return the exit status."""
    try:
        return _invoke(words)
    except (click.Abort, KeyboardInterrupt):
        return _report_interrupt(words)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return UsageError.exit_status
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user must not see it as a traceback
        known = _as_input_error(error, words)
        debug = DEBUG_FLAG in words
        return _report(known, debug=debug) if known is not None else _report_bug(error, debug=debug)


def _invoke(words: list[str]) -> int:
    # Not Command.main(), which treats a broken pipe as a failure and an EOFError as an interrupt.
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "ptq", COMPLETION_VARIABLE, instruction)
    try:
        with own_grants(), cli.make_context("ptq", list(words)) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as error:  # --help and --version
        return error.exit_code
    sys.stdout.flush()  # What code of the user's has printed; a full disk is an error like any other.
    return result if isinstance(result, int) else DONE


def _as_input_error(error: BaseException, words: Sequence[str]) -> PtqError | None:
    """Return the user-facing error for an exception, or None for a bug in ptq."""
    if isinstance(error, PtqError):
        return error
    known: PtqError | None = None
    if isinstance(error, click.UsageError):
        known = _as_usage_error(error, words)
    elif isinstance(error, SystemExit):
        known = EntryPointError(f"user code called sys.exit({error.code!r})", hint="let it return instead")
    # Errors about specific files are raised where the files are used; this catches the others.
    elif _is_without_memory(error):
        known = NoMemoryError(
            "there is not enough memory",
            hint="pass smaller batches, such as --set data.batch_size=4, or "
            "smaller inputs, or raise the limit: ulimit -v shows it",
        )
    elif isinstance(error, RecursionError):
        known = InvalidOnnxError(
            "the model has more operators in a row, or more graphs inside graphs, than ptq can follow",
            hint="simplify the model, for example with onnxsim",
        )
    elif isinstance(error, FileNotFoundError) and _here() is None:
        known = InputFileError(
            "the current folder does not exist any more", hint="cd to a folder that exists"
        )
    elif isinstance(error, OSError):
        name = f"'{error.filename}'" if error.filename else "stdout or a file"
        known = InputFileError(
            f"{name} cannot be used: {(error.strerror or str(error)).lower()}",
            hint="check its permissions and the free space",
        )
    if known is not None:
        known.__cause__ = error
    return known


def _is_without_memory(error: BaseException) -> bool:
    """Tell whether an allocation failed, which Python, the system and libraries each say in their own way."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, ImportError | OSError | RuntimeError) and any(
        words in str(error).lower() for words in _OUT_OF_MEMORY
    )


def _report(error: PtqError, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    here = _here()
    _say_error("error", as_typed(str(error), here) if here is not None else str(error))
    return error.exit_status


def _here() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _report_bug(error: BaseException, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    _say_error("bug in ptq", f"{type(error).__name__}: {error}".splitlines()[0])
    if not debug:
        click.echo("hint: run the command again with --debug and report what it prints", err=True)
    return BUG


def _report_interrupt(words: list[str]) -> int:
    from ptq_cli.terminal.output import fitted

    status = interrupt_status()
    # The terminal has just shown ^C, or half a progress bar, on this line.
    click.echo("\n" if sys.stderr.isatty() else "", nl=False, err=True)
    lines = f"interrupted{' by SIGTERM' if status == TERMINATED else ''}; earlier outputs are unchanged"
    if next((word for word in words if not word.startswith("-")), "") in CONTINUED:
        lines += "\nhint: run the same command again: it continues from its last checkpoint, if there is one"
    click.echo(fitted(lines, sys.stderr), err=True)
    return status


def _as_usage_error(error: click.UsageError, words: Sequence[str]) -> UsageError:
    command = error.ctx.command_path if error.ctx is not None else "ptq"
    hint = f"run {command} --help to see what it accepts"
    if isinstance(error, click.NoSuchOption):
        if error.ctx is not None and error.option_name.startswith("--"):
            from ptq_cli.terminal.options.settings_as_options import option_instead

            if instead := option_instead(error.option_name, words, error.ctx):
                return UsageError(f"there is no option '{error.option_name}' of '{command}'", hint=instead)
        # Letters after one dash are options of one letter each, and a file's name has more.
        file = next((word for word in words if word.startswith(error.option_name) and "." in word), None)
        if file is not None and "=" not in file:
            hint = f"a file whose name begins with a dash is named ./{file}"
        nearest = did_you_mean(error.option_name, list(error.possibilities or ()))
        return UsageError(f"{command} has no option '{error.option_name}'{nearest}", hint=hint)
    message = error.format_message().rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _say_error(kind: str, text: str) -> None:
    from ptq_cli.terminal.output import fitted

    # Fitted before the color, whose codes have no width.
    lines = fitted(printable(f"{kind} {text}"), sys.stderr)
    click.echo(f"{_colored(kind)}{lines.removeprefix(kind)}", err=True)


def _colored(word: str) -> str:
    # https://no-color.org: set and not empty.
    return word if os.environ.get("NO_COLOR") else click.style(word, fg="red", bold=True)
