"""What docstrings say about the attributes of a dataclass, for pages and schemas that are made from them."""

import inspect
import re
from dataclasses import fields


def attribute_texts(kind: type) -> dict[str, str]:
    """Return the descriptions in the ``Attributes:`` of a docstring, by name, with their line breaks removed.

    Raises:
        ValueError: a field is not described.

    Example:
        >>> from ptq_cli.core.tensors import TensorSpec
        >>> attribute_texts(TensorSpec)["name"]
        "the value's name in the graph."
    """
    texts: dict[str, str] = {}
    name = ""
    for line in (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].splitlines():
        if not line.startswith("    "):
            break
        if match := re.match(r"    (\w+): (.*)", line):
            name = match[1]
            texts[name] = match[2]
        else:
            texts[name] += f" {line.strip()}"
    missing = [item.name for item in fields(kind) if item.name not in texts]
    if missing:
        raise ValueError(f"{kind.__name__} does not describe {', '.join(missing)}")
    return {key: text.replace("``", "`") for key, text in texts.items()}


def sentence(text: str) -> str:
    """Return a description with a capital letter at its beginning and a full stop at its end.

    Example:
        >>> sentence("bits per weight")
        'Bits per weight.'
    """
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", ":")) else f"{text}."
