"""What was asked for cannot be done: options, files, recipes, and code that the user named."""

from ptq_cli.core.errors.ptq_error import PtqError


class UsageError(PtqError):
    """A flag or argument of the command line, or an argument of the Python API, cannot be used."""

    code = "PTQ-USAGE-001"


class InputFileError(PtqError):
    """A file or folder does not exist, cannot be read, has an unusable name, or is not a regular file."""

    code = "PTQ-FILE-001"


class OutputFileError(PtqError):
    """The output cannot be written: a read-only folder, a full disk, a URL, or what is not a file."""

    code = "PTQ-FILE-002"


class RecipeSyntaxError(PtqError):
    """The recipe is not valid TOML, or is not a text file."""

    code = "PTQ-RECIPE-001"


class RecipeKeyError(PtqError):
    """The recipe has a key that ptq does not know; the message names the nearest known key."""

    code = "PTQ-RECIPE-002"


class RecipeValueError(PtqError):
    """A setting has the wrong type or a value outside its range, in a recipe or from a flag."""

    code = "PTQ-RECIPE-003"


class UnknownNameError(PtqError):
    """No metric, method, target, device, preset or tensor has this name; the message has the nearest one."""

    code = "PTQ-RECIPE-004"


class EntryPointError(PtqError):
    """A ``file.py:callable`` cannot be imported, does not exist, is not callable, or raised an exception."""

    code = "PTQ-ENTRY-001"


class PluginError(PtqError):
    """A plug-in of another package cannot be loaded, does not fit, or has a name that is already used."""

    code = "PTQ-PLUGIN-001"
