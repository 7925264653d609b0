"""What docstrings say about the attributes of a class, for pages and schemas that are made from them."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")
BASES = "__described_with__"


def docstring(item: Any) -> str:
    """Return the docstring of a class or a function without its indentation.

    ``python -OO`` drops docstrings, and then it is read from the source.

    Example:
        >>> docstring(sentence).partition(" with")[0]
        'Return a description'
    """
    if sys.flags.optimize < 2:
        return inspect.getdoc(item) or ""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(item))).body
    return (ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None) or ""


def attribute_texts(kind: type) -> dict[str, str]:
    """Return the descriptions in the ``Attributes:`` of a docstring, by name, with their line breaks removed.

    Args:
        kind: a dataclass, or a ``TypedDict``; see ``described_with``.

    Raises:
        ValueError: an attribute is not described.

    Example:
        >>> from ptq_cli.core.tensors import TensorSpec
        >>> attribute_texts(TensorSpec)["name"]
        "the value's name in the graph."
    """
    texts = {key: text for base in getattr(kind, BASES, ()) for key, text in attribute_texts(base).items()}
    texts |= _described(docstring(kind))
    wanted = [item.name for item in fields(kind)] if is_dataclass(kind) else list(get_type_hints(kind))
    missing = [name for name in wanted if name not in texts]
    if missing:
        raise ValueError(f"{kind.__name__} does not describe {', '.join(missing)}")
    return {key: text.replace("``", "`") for key, text in texts.items()}


def described_with(*bases: type) -> Callable[[type[T]], type[T]]:
    """Return a decorator of a ``TypedDict`` that extends others, whose attributes are described there.

    Python does not keep which ones a ``TypedDict`` extends.

    Example:
        >>> from typing import TypedDict
        >>> class Named(TypedDict):
        ...     '''Something with a name.
        ...
        ...     Attributes:
        ...         name: what it is called.
        ...     '''
        ...
        ...     name: str
        >>> @described_with(Named)
        ... class Known(Named):
        ...     '''Something known.'''
        >>> attribute_texts(Known)
        {'name': 'what it is called.'}
    """

    def mark(kind: type[T]) -> type[T]:
        setattr(kind, BASES, bases)
        return kind

    return mark


def _described(text: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in text.partition("Attributes:\n")[2].splitlines():
        if not line.startswith("    "):
            break
        if match := re.match(r"    (\w+(?:, \w+)*): (.*)", line):
            names = match[1].split(", ")
            texts |= dict.fromkeys(names, match[2])
        else:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


def sentence(text: str) -> str:
    """Return a description with a capital letter at its beginning and a full stop at its end.

    Example:
        >>> sentence("bits per weight")
        'Bits per weight.'
    """
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", ":")) else f"{text}."
