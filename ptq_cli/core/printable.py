"""Text from models and files in what ptq writes: no character that a terminal or an editor obeys."""


def visible(text: str, instead: str = "\ufffd") -> str:
    r"""A text with what is not printable replaced, but for line ends and hard spaces.

    Control characters move a terminal's cursor, and marks of direction show a name in another order.

    Example:
        >>> visible("a\x1b[2J\u202eb", "?")
        'a?[2J?b'
    """
    kept = "\n\xa0"
    if text.translate(dict.fromkeys(map(ord, kept))).isprintable():  # As nearly all text, megabytes too.
        return text
    return "".join(letter if letter.isprintable() or letter in kept else instead for letter in text)


def escaped(toml: str) -> str:
    r"""Return TOML in which such characters, which are in strings alone, are written as escapes.

    Example:
        >>> print(escaped('a = "\x9b\u202e"'))
        a = "\u009b\u202e"
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else _escape(letter) for letter in toml)


def _escape(letter: str) -> str:
    code = ord(letter)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
