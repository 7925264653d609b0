"""Names of files: how they are written in messages, and which are of images."""

import os

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")


def escaped_name(name: str) -> str:
    r"""Return a file's name as text that can always be written: bytes that are not UTF-8 are escaped.

    Example:
        >>> escaped_name("cat/\udcff.jpg")
        'cat/\\xff.jpg'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_image(name: str) -> bool:
    """Tell from the suffix whether a file is an image.

    Example:
        >>> is_image("1.JPG"), is_image("notes.txt")
        (True, False)
    """
    return name.lower().endswith(SUFFIXES)
