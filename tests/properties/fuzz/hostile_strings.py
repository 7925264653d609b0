"""Strings that nobody expects, and how they get into an ONNX file."""

from collections.abc import Callable, Iterator

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

HOSTILE = {
    "NUL": b"\0",
    "surrogate": b"\xed\xa0\x80",
    "no UTF-8": b"\xff\xfe",
    "line ends": b"a\r\nb",
    "terminal codes": b"\x1b[31mred",
    "very long": b"m" * 200_000,
    "empty": b"",
    "parent folder": b"../..",
    "absolute path": b"/etc/passwd",
    "right to left": "\u202eabc".encode(),
    "template": b"%s{0}{x}",
    "markup": b"</script><b>",
}
PLACEHOLDER = "PLACE_OF_WHAT_IS_HOSTILE"
Put = Callable[[str], None]


def places(message: Message) -> Iterator[tuple[str, Put]]:
    """Yield each string of a message, those of the messages in it too: its name, and how it is replaced."""
    for field, value in message.ListFields():
        items = [value] if isinstance(value, str | bytes | Message | int | float) else value
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in items:
                yield from places(item)
        elif field.type == FieldDescriptor.TYPE_STRING:
            name = f"{type(message).__name__}.{field.name}"
            if isinstance(message, onnx.StringStringEntryProto) and field.name == "value":
                name = f"{name} of {message.key}"
            for index in range(len(items)):
                yield name, _putter(message, field.name, None if items is not value else index)


def _putter(message: Message, name: str, index: int | None) -> Put:
    def put(text: str) -> None:
        if index is None:
            setattr(message, name, text)
        else:
            getattr(message, name)[index] = text

    return put


def replaced(model: onnx.ModelProto, put: Put, hostile: bytes) -> bytes:
    """Return the file with these bytes as a string, those too that protobuf does not write."""
    try:
        put(hostile.decode())
    except UnicodeDecodeError:
        put(PLACEHOLDER)
    # As long as the placeholder, so that no length around it changes.
    padded = hostile + PLACEHOLDER[len(hostile) :].encode()
    return model.SerializeToString().replace(PLACEHOLDER.encode(), padded)
