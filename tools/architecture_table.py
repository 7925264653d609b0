"""Quantize each architecture of the tests, and write the two tables in ``docs/architectures.md``.

python -m tools.architecture_table
"""

import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.architectures.measure import Measured, measure
from tests.architectures.registry import ARCHITECTURES
from tools.marked import write_part
from tools.tables import code, table

PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"
HEADER = ("architecture", "SQNR", "integer share", "operators in integers", "in float")
BIAS = "bias of "
"""Start of a reason that names a layer without quotation marks."""


def main() -> None:
    """Measure, and write both tables."""
    measured = {}
    for name, architecture in ARCHITECTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            measured[name] = measure(architecture, Path(folder))
        print(f"{name}: {measured[name].sqnr_db:.1f} dB")
    write_part(PAGE, "sqnr", table(HEADER, [row(name, found) for name, found in measured.items()]))
    write_part(PAGE, "reasons", table(("operator", "why it stays float"), reasons(measured)))
    print(f"wrote {PAGE.name}")


def row(name: str, found: Measured) -> list[str]:
    """Return the row of an architecture."""
    floats = Counter(layer.op for layer in found.layers if not layer.quantized)
    integer = sum(layer.quantized for layer in found.layers)
    return [
        name,
        f"{found.sqnr_db:.1f} dB",
        f"{100 * found.integer_share:.0f} %",
        f"{integer} of {len(found.layers)}",
        ", ".join(f"{count} {op}" for op, count in sorted(floats.items())) or "none",
    ]


def reasons(measured: Mapping[str, Measured]) -> list[list[str]]:
    """Return each operator that stays float somewhere, with its reasons without the names of layers."""
    found: dict[str, dict[str, None]] = {}
    for layer in (item for one in measured.values() for item in one.layers if not item.quantized):
        found.setdefault(layer.op, {})[without_names(layer.reason)] = None
    return [[code(op), "; ".join(found[op])] for op in sorted(found)]


def without_names(reason: str) -> str:
    """Return a reason without the names of layers and constants in it.

    Example:
        >>> without_names("looks up rows of the table 'words': it is large")
        'looks up rows of the table …: it is large'
        >>> without_names("bias of head.0, added to its float result")
        'bias of …, added to its float result'
    """
    if reason.startswith(BIAS):
        return f"{BIAS}…,{reason.partition(',')[2]}"
    return re.sub(r"(?<!\w)'[^']*'", "…", reason)


if __name__ == "__main__":
    main()
