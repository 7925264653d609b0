"""``docs/commands.md``: every command and option, as click knows them."""

import inspect
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import groupby

import click

from ptq_cli.cli.main import COMMANDS, cli
from ptq_cli.recipe.assignments import FLAG_KEYS, OVERRIDE
from ptq_cli.terminal.options.help_sections import GLOBAL, SECTIONS, options_by_section
from tools.tables import code, listed

Row = tuple[str, str, str]  # An option, the keys that it sets, and what it means
INTRODUCTION = """\
# Commands

Flags override [recipes](recipe.md). Behind an option stands the key that it sets; `--set KEY=VALUE` sets any
key, and `ptq recipe keys` lists them. `ptq COMMAND --help` says more of each command. The examples are for a
folder with a model, its data and a `ptq.toml` that names them.

## Output

Results go to stdout, everything else to stderr: progress, notes, warnings, the next step, and errors.

- `--json` prints the result as one JSON document.
- `--quiet` (`-q`) leaves out progress, notes and next steps; commands that write files, and `ptq gate`, then
  print only verdicts, warnings and paths. Files and exit status are the same.
- `--debug` adds the traceback to an error.

Tables fit the terminal, or the width in `COLUMNS`. `ptq --version` also shows plug-ins.

In bash (4.4 or later), `eval "$(_PTQ_COMPLETE=bash_source ptq)"` in `~/.bashrc` completes commands, options
and choices; zsh and fish have `zsh_source` and `fish_source`.

## Exit status

| status | meaning |
| --- | --- |
| 0 | done; if limits were set, all of them passed |
| 1 | a bug in ptq |
| 2 | usage, recipe or input error: one line with a [code](errors.md), and a hint |
| 3 | a limit failed |
| 130 | interrupted by Ctrl-C |
| 143 | interrupted by SIGTERM |

After 130 and 143 earlier outputs are unchanged, and `calibrate`, `quantize`, `export`, `evaluate` and `tune`
continue from their last checkpoint when they are run again.
"""
FOLDER = "project"
# Where the examples run, and where those of some commands do; ``tools.pages.folders`` makes them.
FOLDERS = {"ptq recipe": "project without recipe", "ptq recipe init": "project without recipe"}
# Why examples that begin with a program are not run.
NOT_RUN = {"torchrun": "it starts four processes; the tests of torchrun start two"}
# The page that tells more of a command than the first paragraph of its help.
MORE = {
    "ptq calibrate": "amax.md",
    "ptq merge": "guides/many-machines.md",
    "ptq export": "amax.md",
    "ptq evaluate": "metrics.md",
    "ptq analyze": "analyze.md",
    "ptq drift": "guides/watching.md",
    "ptq quantize": "guides/first-model.md",
    "ptq tune": "tune.md",
    "ptq verify": "verify.md",
    "ptq repair": "verify.md",
    "ptq bench": "latency.md",
    "ptq recipe": "recipe.md",
    "ptq gate": "guides/ci.md",
    "ptq report": "report.md",
}
# Parameters whose name in click differs from the setting's: ``min`` is a Python function.
PARAMETER_NAMES = {"minimum": "min"}


def command_page() -> str:
    """Return the page."""
    group = click.Context(cli, info_name="ptq", **cli.context_settings)
    sections = [INTRODUCTION, _group_section(), _shared_section()]
    for name in COMMANDS:
        command = cli.get_command(group, name)
        if command is None:
            raise RuntimeError(f"'{name}' is not a command")
        sections += _sections(command, click.Context(command, info_name=name, parent=group))
    return "\n".join(sections)


def _sections(command: click.Command, context: click.Context) -> list[str]:
    """Return the section of a command and of its subcommands."""
    parts = [_section(command, context)]
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            parts += _sections(inner, click.Context(inner, info_name=name, parent=context))
    return parts


def _group_section() -> str:
    names = ", ".join(f"[`{name}`](#ptq-{name})" for name in COMMANDS)
    return f"## ptq\n\nCommands: {names}.\n"


def _section(command: click.Command, context: click.Context) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [
        f"## {context.command_path}",
        f"```text\n{usage}\n```",
        _summary(command, context),
        _options(command, context),
        *_epilog(command.epilog or "", FOLDERS.get(context.command_path, FOLDER)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _summary(command: click.Command, context: click.Context) -> str:
    """Return the first paragraph of a command's help, and the page that says the rest."""
    first = inspect.cleandoc(command.help or "").split("\n\n")[0]
    page = MORE.get(context.command_path, "")
    return f"{first} More: [{page}]({page})." if page else first


def _options(command: click.Command, context: click.Context) -> str:
    """Return the options of a command: a list of its own, and the names of those that it shares."""
    shared, rows, others = {row[::2] for row in shared_rows()}, [], []
    for section, found in options_by_section(command, context).items():
        for option in found if section != GLOBAL else ():
            row = _row(option, context)
            if row[::2] in shared:
                others += [code(option.opts[0])]
            else:
                rows.append(row)
    own = [listed(rows)] if rows else []
    names = [f"[Shared options](#shared-options): {', '.join(others)}."] if others else []
    return "\n\n".join([*own, *names])


@cache
def shared_rows() -> tuple[Row, ...]:
    """Return the options that two commands or more have alike, in the order of help."""
    group = click.Context(cli, info_name="ptq")
    found: dict[str, list[Row]] = {section: [] for section in SECTIONS}
    waiting = [(command, group) for name in COMMANDS if (command := cli.get_command(group, name))]
    while waiting:
        command, parent = waiting.pop(0)
        context = click.Context(command, info_name=command.name, parent=parent)
        if isinstance(command, click.Group):
            waiting += [(inner, context) for inner in command.commands.values()]
        for section, options in options_by_section(command, context).items():
            found[section] += [_row(option, context) for option in options]
    del found[GLOBAL]
    # Commands without a recipe have some of them, too, which set no key there.
    keys = {row[::2]: row[1] for rows in found.values() for row in rows if row[1]}
    counts = [Counter(row[::2] for row in rows) for rows in found.values()]
    several = [
        (name, keys.get((name, meaning), ""), meaning)
        for rows in counts
        for (name, meaning), count in rows.items()
        if count > 1
    ]
    # An option of which two groups of commands mean different things is described with each.
    names = Counter(name for name, _, _ in several)
    return tuple(row for row in several if names[row[0]] == 1)


def _shared_section() -> str:
    said = "These mean the same in every command that has them. Commands without `--recipe` set no keys."
    return f"## Shared options\n\n{said}\n\n{listed(shared_rows())}\n"


def _row(option: click.Option, context: click.Context) -> Row:
    command = context.command
    takes_recipe = any(item.name in ("recipe", "budget") for item in command.params)
    # What the command's function names itself is no setting, though one may have the same name.
    own = inspect.signature(inspect.unwrap(command.callback)).parameters if command.callback else ()
    keys = _keys(option) if takes_recipe and option.name not in own else ""
    return _spelling(option, context), keys, _meaning(option)


def _spelling(option: click.Option, context: click.Context) -> str:
    names = [code(name) for name in (*option.opts, *option.secondary_opts)]
    value = "" if option.is_flag or option.count else f" {code(option.make_metavar(context))}"
    return ", ".join(names) + value


def _meaning(option: click.Option) -> str:
    text, _, default = (option.help or "").partition("[default: ")
    default = default.removesuffix("]") or (str(option.default) if option.show_default else "")
    return text.strip() + (f" Default: {default}." if default else "")


def _keys(option: click.Option) -> str:
    name = PARAMETER_NAMES.get(option.name or "", option.name or "")
    if name in (OVERRIDE, "exclude"):
        return "[`[[override]]`](recipe.md#override)"
    key = FLAG_KEYS.get(name)
    return f"[`{key}`](recipe.md#{key.partition('.')[0]})" if key else ""


def _epilog(text: str, folder: str) -> list[str]:
    lines, examples = inspect.cleandoc(text.replace("\b", "")).splitlines(), _examples(text)
    rest = [line for line in lines if line and not line.startswith(("  ", "Example"))]
    by_reason = groupby(examples, key=lambda line: NOT_RUN.get(line.partition(" ")[0]))
    blocks = [_block(reason, list(group), folder) for reason, group in by_reason]
    return [*blocks, *(["\n".join(rest)] if rest else [])]


def _examples(epilog: str) -> list[str]:
    lines = inspect.cleandoc(epilog.replace("\b", "")).splitlines()
    return [line.strip() for line in lines if line.startswith("  ")]


def _block(reason: str | None, lines: Sequence[str], folder: str) -> str:
    """Return examples between fences, with the comment that says where they run or why not."""
    comment = f"<!-- not run: {reason} -->" if reason else f"<!-- folder: {folder} -->"
    return "\n".join([comment, "```bash", *lines, "```"])
