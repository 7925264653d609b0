"""Options that most commands share, and how all of them become settings; each option is defined once."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ptq_cli.core.errors import UsageError
from ptq_cli.core.trust import trust_all
from ptq_cli.setup.run_directory import DEFAULT_RUN
from ptq_cli.terminal.options.help_sections import GLOBAL, OWN, RUNNING, option
from ptq_cli.terminal.output import keep_quiet

if TYPE_CHECKING:
    from ptq_cli.recipe.assignments import Once
    from ptq_cli.setup.resolve import Request

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

# Whether it can be read is for the room that reads it to say, in its own words.
PATH = click.Path(readable=False, path_type=Path)

RUN = option(
    RUNNING, "--run", type=PATH, default=DEFAULT_RUN, show_default=True, metavar="DIR", help="Run directory."
)


def _only_own_keys(
    context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse keys that hold for one command and have no effect on this one."""
    from ptq_cli.recipe.assignments import ONCE, ONCE_KEYS

    own, only = getattr(context.command, "once", ()), getattr(context.command, "only", "")
    for text in texts:
        section, _, name = text.partition("=")[0].strip().partition(".")
        if only and section != only:
            raise UsageError(
                f"--set {text.partition('=')[0]} has no effect on {context.command_path}",
                hint=f"it takes the keys of [{only}]",
            )
        if section == ONCE and name in ONCE_KEYS and name not in own:
            taken = ", ".join(f"{ONCE}.{name}" for name in own)
            raise UsageError(
                f"--set {section}.{name} has no effect on {context.command_path}",
                hint=f"it takes {taken}" if taken else "leave it out",
            )
    return texts


def set_option(help: str) -> Callable[[Any], Any]:
    """Return ``--set``."""
    return option(
        RUNNING,
        "--set",
        "assignments",
        multiple=True,
        callback=_only_own_keys,
        metavar="KEY=VALUE",
        help=help,
    )


def _trust_code(_context: click.Context, _parameter: click.Parameter, value: Any) -> None:
    if value:
        trust_all()


TRUST_CODE = option(
    RUNNING,
    "--trust-code",
    is_flag=True,
    expose_value=False,
    callback=_trust_code,
    help="Run the code that a recipe or a run directory names, and remember that it is trusted.",
)
RECIPES = (
    option(RUNNING, "--recipe", type=PATH, metavar="FILE", help="Recipe file; overrides ./ptq.toml."),
    option(
        RUNNING,
        "--preset",
        metavar="NAME",
        help="Base settings: w8a8, w4a8, w4a16, w8a16, dynamic, or another name.  [default: int8_ort_cpu]",
    ),
    set_option("Set any key of a recipe: amax.bins=1024. ptq recipe keys lists them. Can be repeated."),
    TRUST_CODE,
)
OUTPUT = option(
    OWN,
    "--output",
    "-o",
    type=PATH,
    metavar="FILE",
    help="Output file.  [default: RUN/model_int8.onnx, or RUN/model_q4.onnx for 4-bit weights]",
)


def take(*options: Decorator[Any] | tuple[Decorator[Any], ...]) -> Decorator[Any]:
    """Return a decorator that adds options, in the order in which ``--help`` shows them."""
    flat = [item for group in options for item in (group if isinstance(group, tuple) else (group,))]

    def decorate(command: Any) -> Any:
        for add in reversed(flat):
            command = add(command)
        return command

    return decorate


def refuse_options(names: tuple[str, ...], why: str, hint: str) -> None:
    """Raise if one of the options and arguments was typed whose parameters have these names."""
    context = click.get_current_context()
    for item in context.command.params:
        typed = context.get_parameter_source(item.name or "") is ParameterSource.COMMANDLINE
        if item.name in names and typed:
            name = item.opts[0] if isinstance(item, click.Option) else item.name.upper()
            raise UsageError(f"{name} {why}", hint=hint)


def settings_from(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as settings of the recipe, together with those of ``--set``."""
    from ptq_cli.evaluation import limits

    settings = {name: value for name, value in options.items() if value not in (None, ())}
    texts = settings.pop("assignments", ())
    if "minimum" in settings:
        settings["min"] = settings.pop("minimum")
    for name in ("exclude", "metric"):
        if name in settings:
            settings[name] = list(settings[name])
    flags = {
        "max_drop": limits.MAX_DROP_FLAG,
        "max_regression": limits.MAX_REGRESSION_FLAG,
        "min": limits.MIN_FLAG,
        "budget": limits.BUDGET_FLAG,
    }
    for name, flag in flags.items():
        if name in settings:
            settings[name] = limits.parse_limits(settings[name], flag)
    if not texts:
        return settings
    from ptq_cli.recipe.assignments import add_assignments, parse_assignments

    return add_assignments(settings, parse_assignments(texts)[0])


def request_from(options: dict[str, Any], model: Path | None = None) -> "Request":
    """Return what is asked of a verb: the settings of the options, above those of ``RECIPES``."""
    from ptq_cli.setup.resolve import Request

    recipe, preset = options.pop("recipe", None), options.pop("preset", None)
    asked = Request(settings=settings_from(options), model=model, recipe_file=recipe, preset=preset)
    return asked.by_user()


def once_from(options: dict[str, Any]) -> "Once":
    """Return what ``--set`` says for this command alone."""
    from ptq_cli.recipe.assignments import parse_assignments

    return parse_assignments(options["assignments"])[1]


JSON = option(RUNNING, "--json", "as_json", is_flag=True, help="Print the result as JSON.")
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
GLOBALS = (JSON, *TALK)  # What every command takes; a group of commands takes ``TALK`` alone
