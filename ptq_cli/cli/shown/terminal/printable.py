"""Text from models and files, made safe for the terminal."""

import os
import re
from pathlib import Path


def printable(text: str) -> str:
    r"""Return ``text`` with every control character but the newline replaced.

    Names from a model or a file may contain escape sequences; the terminal must not execute them.

    Example:
        >>> printable("conv\x1b[2J")
        'conv?[2J'
    """
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)


def as_typed(text: str, folder: Path) -> str:
    """Return ``text`` with paths below ``folder`` made relative to it, as the user typed them.

    Recipes hold absolute paths, because their layers come from different folders; in a message a long path
    hides the file's name.

    Example:
        >>> as_typed("data '/home/ann/calib.npz' does not exist", Path("/home/ann"))
        "data 'calib.npz' does not exist"
        >>> as_typed("data '/other/home/ann/calib.npz'", Path("/home/ann"))
        "data '/other/home/ann/calib.npz'"
    """
    prefix = os.path.join(folder, "")  # noqa: PTH118 - adds the separator only where missing
    if prefix == os.sep:
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(prefix)}", "", text)
