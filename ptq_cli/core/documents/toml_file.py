"""TOML that a user wrote, as tables."""

import codecs
import tomllib
from pathlib import Path
from typing import Any

from ptq_cli.core.errors import RecipeSyntaxError
from ptq_cli.core.read_files import read_file


def read_toml(path: Path, what: str, where: str) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Args:
        path: the file.
        what: what it is to the user, such as ``"recipe"``.
        where: what messages about its content call it.

    Raises:
        InputFileError: it is missing, a folder, or cannot be read.
        RecipeSyntaxError: it is not TOML.
    """
    content = read_file(path, what)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise RecipeSyntaxError(f"{where} is text in UTF-16, expected UTF-8", hint="save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")  # with a byte order mark, as editors of Windows write it
        return tomllib.loads(text.replace("\r\n", "\n").replace("\r", "\n"))  # lines may end as on any system
    # Thousands of digits raise a plain ValueError, thousands of brackets a RecursionError.
    except (ValueError, RecursionError) as error:
        raise RecipeSyntaxError(f"{where} is not valid TOML: {error}", hint="see https://toml.io") from error
