"""Recipes, reports and calibrations with values of other types, other sizes, and other bytes."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ptq_cli.core.container import HEADER_KEY

Random = np.random.Generator
DEEP = 3000
JSON_VALUES = (
    *("null", "true", "-1", "0", "1e400", "NaN", "-Infinity", "1" * 400, "2.5", "[]", "{}", '""', "[[[1]]]"),
    *("[" * DEEP + "]" * DEEP, '"\\u0000"', '"\\ud800"', '"\\u001b[31m"', '"\\u202eabc"', '"../../x"'),
    *('"/etc/passwd"', '"<script>"', '"' + "n" * 200_000 + '"', '{"a": ' * 200 + "1" + "}" * 200, "1" * 5000),
)
TOML_VALUES = (
    *("nan", "inf", "-inf", "-1", "0", "1e400", "true", '""', "[]", "{}", "1979-05-27", "2" * 30),
    *("0x7fffffff", "[" * 90 + "]" * 90, '"\\u0000"', '"\\u001b[31m"', '"\\u202eabc"', '"../../x"'),
    *('"/etc/passwd"', '"/dev/zero"', '"' + "n" * 100_000 + '"', "[1, 'a', nan]", "{a = {b = {c = 1}}}"),
    *('"mse"', "9223372036854775807", '"run"', '"1e999GB"', '"file.py:callable"', '"{000..999999999}.tar"'),
    *('"*"', "[1.5]", "-0.0", "1e-320", '"model.onnx"'),
)


def flipped(content: bytes, random: Random) -> bytes:
    """Return bytes with some changed, missing, repeated, or cut off."""
    data = bytearray(content)
    start = int(random.integers(0, max(1, len(data))))
    match random.integers(0, 5):
        case 0:
            return bytes(data[:start])
        case 1:
            length = int(random.integers(1, 64))
            data[start : start + length] = b"" if random.random() < 0.5 else bytes(length)
        case 2:
            hostile = list(HOSTILE.values())
            data[start:start] = hostile[int(random.integers(0, len(hostile)))]
        case _:
            for place in random.integers(0, max(1, len(data)), int(random.integers(1, 5))):
                if data:
                    data[place] ^= 1 << int(random.integers(0, 8))
    return bytes(data)


def fuzzed_json(content: bytes, random: Random) -> bytes:
    """Return a JSON file with other values, keys missing, or other bytes."""
    if random.random() < 0.15:
        return flipped(content, random)
    table = json.loads(content)
    for _ in range(int(random.integers(1, 3))):
        _edit_value(table, random)
    text = json.dumps(table)
    chosen = JSON_VALUES[int(random.integers(0, len(JSON_VALUES)))]
    return text.replace('"VALUE"', chosen).encode("utf-8", "surrogatepass")


def _edit_value(table: Any, random: Random) -> None:
    """Replace or remove a value somewhere, by way of random keys."""
    parent, key = None, None
    while isinstance(table, dict | list) and table and (parent is None or random.random() < 0.85):
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        parent, key = table, keys[int(random.integers(0, len(keys)))]
        table = parent[key]
    if parent is None:
        return
    match random.integers(0, 8):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent["unknown\x1b"] = 1
        case 2 if isinstance(table, int | float):
            parent[key] = -table if random.random() < 0.5 else table * 1e30
        case 3 if isinstance(parent, list):
            parent.extend([parent[key]] * 3)
        case _:
            parent[key] = "VALUE"


def fuzzed_toml(content: bytes, random: Random) -> bytes:
    """Return a TOML file with other values, with lines twice or missing, or with other bytes."""
    if random.random() < 0.15:
        return flipped(content, random)
    lines = content.decode().splitlines()
    for _ in range(int(random.integers(1, 3))):
        index = int(random.integers(0, len(lines)))
        found = re.match(r"(\s*[\w\"'-]+\s*=\s*)(.*)", lines[index])
        chosen = TOML_VALUES[int(random.integers(0, len(TOML_VALUES)))]
        kind = random.integers(0, 8)
        if kind == 0:
            lines.insert(index, lines[index])
        elif kind == 1:
            del lines[index]
        elif kind == 2:
            lines.insert(index, f'"{"k" * int(random.integers(0, 300))}\\u001b" = {chosen}')
        elif found:
            lines[index] = f"{found[1]}{chosen}"
        if not lines:
            break
    return "\n".join(lines).encode()


def fuzzed_statistics(content: bytes, random: Random) -> bytes:
    """Return a calibration with another header or other counts; half of them with a checksum that fits."""
    if random.random() < 0.3:
        return flipped(content, random)
    length = int.from_bytes(content[:8], "little")
    outer, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    kind = random.integers(0, 4)
    if kind == 0:
        changed = fuzzed_json(json.dumps(outer).encode(), random)
        size = len(changed) if random.random() < 0.7 else int(random.choice([0, 2**40, 2**63 - 1]))
        return size.to_bytes(8, "little") + changed + bytes(data)
    header = json.loads(outer["__metadata__"][HEADER_KEY])
    if kind == 1:
        _edit_value(header, random)
    elif data:
        values = np.frombuffer(data, "<f4" if random.random() < 0.5 else "<u4").copy()
        start = int(random.integers(0, len(values)))
        values[start : start + int(random.integers(1, 50))] = random.choice([0, 1, 3e9, 77])
        if values.dtype.kind == "f" and random.random() < 0.5:
            values[start] = random.choice([np.nan, np.inf, -1.0])
        data = bytearray(values.tobytes())
    if random.random() < 0.8:
        header["checksum"] = _checksum(header, outer, data)
    outer["__metadata__"][HEADER_KEY] = json.dumps(header, sort_keys=True)
    text = json.dumps(outer).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def _checksum(header: dict[str, Any], outer: dict[str, Any], data: bytearray) -> str:
    header = {key: value for key, value in header.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(set(outer) - {"__metadata__"}):
        begin, end = outer[name]["data_offsets"]
        digest.update(data[begin:end])
    return digest.hexdigest()


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
