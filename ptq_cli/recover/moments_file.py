"""``moments.safetensors``: sums of products of what layers read, and the calibration that they rest on.

The arrays are mapped and not read: those of all layers together may be larger than the memory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.calibration_file import Counted, provenance_to_table, table_to_provenance
from ptq_cli.core.container import Bytes, Container, map_file
from ptq_cli.core.errors import MomentsFileError
from ptq_cli.core.files import atomic_write
from ptq_cli.recover.input_moments import InputMoments
from ptq_cli.recover.tensor_moments import TensorMoments

CONTAINER = Container(
    format="ptq.moments",
    version=2,
    error=MomentsFileError,
    what="a file of moments",
    made_by="`ptq calibrate --moments` writes one: moments.safetensors",
    again="run ptq calibrate --moments again",
    dtypes=("I32", "I64"),
    is_flat=False,
)
METHOD = "moments"
"""What the provenance has in the place of a collector."""

Moments = Counted[TensorMoments]
Sums = npt.NDArray[np.signedinteger]


def save_moments(moments: Moments, path: Path) -> None:
    """Write moments, atomically."""
    with atomic_write(path) as partial, partial.open("wb") as file:
        for part in CONTAINER.parts(*_stored(moments)):
            file.write(part)


def moments_bytes(moments: Moments) -> bytes:
    """Return the content of the file; the same moments give the same bytes."""
    return CONTAINER.content(*_stored(moments))


def _stored(moments: Moments) -> tuple[dict[str, Any], dict[str, Sums]]:
    entries, arrays = _flatten(moments.statistics)
    return {"provenance": provenance_to_table(moments.provenance), "tensors": entries}, arrays


def _flatten(
    tensors: Mapping[str, TensorMoments],
) -> tuple[list[dict[str, Any]], dict[str, Sums]]:
    entries: list[dict[str, Any]] = []
    arrays: dict[str, Sums] = {}
    for name, item in sorted(tensors.items()):
        readings = []
        for key, moments in sorted(item.readings.items()):
            readings.append({"key": key, "rows": moments.rows})
            number = f"{len(entries)}.{len(readings) - 1}"
            arrays |= {f"{number}.sums": moments.sums, f"{number}.products": moments.products}
        entries.append({"name": name, "grid": item.grid, "readings": readings})
    return entries, arrays


def load_moments(path: Path) -> Moments:
    """Open a file of moments, whose arrays are read as they are used."""
    return parse_moments(map_file(path, "file of moments", CONTAINER), str(path))


def parse_moments(content: bytes | Bytes, name: str) -> Moments:
    """Return the moments of a file's content; ``name`` is for messages."""
    return CONTAINER.parse(content, name, _moments)


def _moments(header: dict[str, Any], arrays: dict[str, Sums]) -> Moments:
    return Moments(table_to_provenance(header["provenance"]), dict(_tensors(header["tensors"], arrays)))


def _tensors(entries: Any, arrays: Mapping[str, Sums]) -> Iterator[tuple[str, TensorMoments]]:
    for place, entry in enumerate(entries):
        readings = {}
        for index, item in enumerate(entry["readings"]):
            sums, products = (arrays[f"{place}.{index}.{part}"] for part in ("sums", "products"))
            groups, size = sums.shape
            if products.shape != (groups, size * (size + 1) // 2) or not 0 <= int(item["rows"]) < 2**63:
                raise ValueError(f"the moments of '{str(entry['name'])[:40]}' contradict each other")
            readings[str(item["key"])] = InputMoments(rows=int(item["rows"]), sums=sums, products=products)
        yield str(entry["name"]), TensorMoments(grid=str(entry["grid"]), readings=readings)
