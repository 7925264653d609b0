"""``calibration.safetensors``: the statistics, and what they were made from.

Flat arrays hold the statistics (``statistics_codec``); a JSON header says where each tensor's lie, and
carries a checksum of itself and of the arrays, so that a damaged file is an error and never a wrong number.
Only the statistics are kept: every amax method decides from them later.
"""

import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from ptq_cli.collectors.artifact.share import Share, share_to_table, table_to_share
from ptq_cli.collectors.artifact.statistics_codec import Arrays, flatten, unflatten
from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import CalibrationFileError
from ptq_cli.core.errors.error_text import first_line
from ptq_cli.core.files import atomic_write
from ptq_cli.core.read_files import read_file

FORMAT = "ptq.calibration"
FORMAT_VERSION = 3
HEADER_KEY = "ptq"
SAFETENSORS_DTYPES = {"U32": "<u4", "I64": "<i8", "F32": "<f4"}


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a calibration was made from; it is refused where model, source or settings have changed.

    Attributes:
        model: SHA-256 of ``model.float.onnx``.
        source: SHA-256 of the model's file that the user named.
        data: digest of the calibration set; reported, and not checked again: export needs no data.
        settings: the recipe's settings that the statistics depend on, as text by name; and the hash of each
            file that the model was made from (its weights, its architecture).
        flags: which of those settings the command line set, so that a later stage can tell them from an
            edited recipe.
        method: the collector.
        samples: how many samples were seen.
        share: which part of the calibration set was seen; None for all of it.
    """

    model: str
    source: str
    data: str
    settings: dict[str, str]
    flags: dict[str, Any]
    method: str
    samples: int
    share: Share | None = None


class Mergeable(Protocol):
    """What was counted of some values, and can be added up."""

    def merge(self, other: Self, /) -> Self:
        """Return what both have counted; raises ValueError if they do not fit each other."""


Item = TypeVar("Item", bound=Mergeable)


@dataclass(frozen=True)
class Counted(Generic[Item]):
    """What was counted of each tensor, by its name, with where it comes from."""

    provenance: Provenance
    statistics: dict[str, Item]


Calibration = Counted[TensorStatistics]
"""Statistics by tensor name, with their provenance."""


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration, atomically.

    Raises:
        OutputFileError: it cannot be written.
    """
    with atomic_write(path) as partial:
        partial.write_bytes(calibration_bytes(calibration))


def calibration_bytes(calibration: Calibration) -> bytes:
    """Return the artifact's content; the same statistics give the same bytes."""
    arrays, entries = flatten(calibration.statistics)
    header: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "provenance": asdict(calibration.provenance)
        | {"share": share_to_table(calibration.provenance.share)},
        "tensors": entries,
    }
    header["checksum"] = _checksum(header, arrays)
    return save(arrays, metadata={HEADER_KEY: json.dumps(header, sort_keys=True)})


def statistics_digest(statistics: Mapping[str, TensorStatistics]) -> str:
    """Return the SHA-256 of the statistics alone, whatever they were made from.

    Example:
        >>> statistics_digest({})[:8]
        '6fc79f81'
    """
    arrays, entries = flatten(statistics)
    return _checksum({"tensors": entries}, arrays)


def load_calibration(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        InputFileError: the file is missing or unreadable.
        CalibrationFileError: it is damaged, no calibration, or of another format version.
    """
    return parse_calibration(read_file(path, "calibration"), str(path))


def parse_calibration(content: bytes, name: str) -> Calibration:
    """Return the calibration of the content of a file.

    Args:
        content: of a file, or whatever stands in its place.
        name: of the file, for messages.

    Raises:
        CalibrationFileError: it is damaged, no calibration, or of another format version.
    """
    try:
        return _parse(content, name)
    # A deep JSON raises RecursionError; safetensors, numpy and the checks raise the others.
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CalibrationFileError(
            f"'{name}' is damaged: {first_line(error)}", hint="calibrate again"
        ) from error


def _parse(content: bytes, name: str) -> Calibration:
    # safetensors checks offsets and lengths, but its Python layer hands out no metadata of bytes in memory.
    items = deserialize(content)  # type: ignore[no-untyped-call]
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    header = _checked_header(json.loads(metadata.get(HEADER_KEY, "{}")), name)
    arrays = {key: _array(item) for key, item in items}
    if header.pop("checksum", None) != _checksum(header, arrays):
        raise ValueError("its checksum is wrong")
    return Calibration(
        table_to_provenance(header.get("provenance")), unflatten(header.get("tensors"), arrays)
    )


def _checked_header(header: Any, name: str) -> dict[str, Any]:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CalibrationFileError(
            f"'{name}' is not a calibration", hint="`ptq calibrate` writes one: calibration.safetensors"
        )
    version = header.get("format_version")
    if version != FORMAT_VERSION:
        raise CalibrationFileError(
            f"'{name}' has format version {str(version)[:40]}, this version of ptq reads {FORMAT_VERSION}",
            hint="calibrate again, or use the version of ptq that wrote it",
        )
    return header


def _array(item: dict[str, Any]) -> npt.NDArray[Any]:
    dtype, shape = item["dtype"], item["shape"]
    if dtype not in SAFETENSORS_DTYPES or len(shape) != 1:
        raise ValueError(f"an array is {dtype}{shape}")
    return np.frombuffer(item["data"], SAFETENSORS_DTYPES[dtype])


def table_to_provenance(table: Any) -> Provenance:
    """Return the provenance that the header of a file holds.

    Raises:
        ValueError: it is not one.
    """
    hints = typing.get_type_hints(Provenance)
    if not isinstance(table, dict) or set(table) != set(hints):
        raise ValueError("it does not say what it was made from")
    share = table_to_share(table.pop("share"))
    for name, value in table.items():
        if type(value) is not (typing.get_origin(hints[name]) or hints[name]):
            raise ValueError(f"its '{name}' is {str(value)[:40]}")
    if not all(isinstance(text, str) for text in table["settings"].values()) or table["samples"] < 0:
        raise ValueError("its settings are not text, or its samples are negative")
    return Provenance(**table, share=share)


def _checksum(header: dict[str, Any], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
