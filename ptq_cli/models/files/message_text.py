"""Text in a protobuf message: a string that is not UTF-8 reaches Python as bytes."""

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ptq_cli.core.errors import ModelFormatError


def require_text(message: Message, name: str) -> None:
    """Check that every string of a model is text: whoever meets bytes later does not expect them."""
    if not _is_text(message):
        raise ModelFormatError(
            f"model '{name}' is damaged: a name in it is not text", hint="copy or export it again"
        )


def _is_text(message: Message) -> bool:
    # By name and not with ListFields, which would copy every constant of the model.
    for name, is_message, is_repeated in _fields(message.DESCRIPTOR):
        if is_message and not is_repeated and not message.HasField(name):
            continue
        value = getattr(message, name)
        for item in value if is_repeated else (value,):
            if not _is_text(item) if is_message else isinstance(item, bytes):
                return False
    return True


@cache
def _fields(kind: Descriptor) -> tuple[tuple[str, bool, bool], ...]:
    """Return each field that may hold text: its name, whether it is a message, and whether it is repeated."""
    empty, kinds = GetMessageClass(kind)(), (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE)
    return tuple(
        (
            field.name,
            field.type == FieldDescriptor.TYPE_MESSAGE,
            # What a descriptor says of this has another name from version to version of protobuf.
            not isinstance(getattr(empty, field.name), str | bytes | Message),
        )
        for field in kind.fields
        if field.type in kinds
    )
