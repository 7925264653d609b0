"""The ``ptq`` command: finds a subcommand, runs it, and turns what goes wrong into an exit status."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from ptq_cli.core.errors import PtqError, UsageError, did_you_mean

COMMANDS = ("calibrate", "export", "evaluate", "quantize", "inspect", "gate")
DONE, BUG, INTERRUPTED = 0, 1, 130
DEBUG_FLAG = "--debug"


class LazyGroup(click.Group):
    """Imports a subcommand's file only when it is needed, which keeps ``ptq --help`` fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order in which one uses them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, or None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"ptq_cli.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command; an unknown name gets the nearest known one as a hint."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise UsageError(
                f"there is no command '{name}'{did_you_mean(name, list(COMMANDS))}",
                hint=f"the commands are {', '.join(COMMANDS)}; ptq --help describes them",
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Example:
  cd sample_models/cifar10_cnn
  ptq calibrate model.pt --method histogram
  ptq export --onnx
  ptq evaluate --max-drop top1=0.01

Exit status: 0 done, 1 bug in ptq, 2 usage, recipe or input error, 3 gate missed, 130 interrupted.""",
)
@click.version_option(package_name="ptq-cli", prog_name="ptq")
def cli() -> None:
    """Quantize a trained model after training, and prove what that cost in accuracy.

    Calibrate once, export ONNX with QuantizeLinear/DequantizeLinear, evaluate, and gate.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``ptq`` and exit.

    Args:
        arguments: of the command line; None for those of the process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    status = run(words)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    sys.exit(status)


def run(words: list[str]) -> int:
    """Run ``ptq`` with the given words, and return the exit status."""
    debug = DEBUG_FLAG in words
    try:
        result = cli.main(args=words, prog_name="ptq", standalone_mode=False)
    except PtqError as error:
        return _report(error, debug=debug)
    except click.UsageError as error:
        return _report(_as_usage_error(error), debug=debug)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; earlier outputs are as they were", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return DONE
    except Exception as error:  # noqa: BLE001 - whatever is left is a bug, and the last one to hear of it is here
        return _report_bug(error, debug=debug)
    return result if isinstance(result, int) else DONE


def _report(error: PtqError, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    click.echo(f"{click.style('error', fg='red', bold=True)} {_printable(str(error))}", err=True)
    return error.exit_status


def _report_bug(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    text = _printable(f"{type(error).__name__}: {error}".splitlines()[0])
    click.echo(f"{click.style('bug in ptq', fg='red', bold=True)} {text}", err=True)
    if not debug:
        click.echo("hint: run the command again with --debug and report what it prints", err=True)
    return BUG


def _as_usage_error(error: click.UsageError) -> UsageError:
    command = error.ctx.command_path if error.ctx is not None else "ptq"
    message = error.format_message().rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=f"{command} --help lists what it takes")


def _printable(text: str) -> str:
    # Names from a model or a file may hold control characters; a terminal must not obey them.
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)


def _discard_stdout() -> None:
    # The reader is gone (ptq inspect | head); Python would complain again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
