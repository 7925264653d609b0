"""Quantize each architecture of the tests, and write the table in ``benchmarks/RESULTS.md``.

python -m tools.architecture_table
"""

import tempfile
from collections import Counter
from pathlib import Path

from tests.architectures.measure import Measured, measure
from tests.architectures.registry import ARCHITECTURES
from tools.marked import write_part
from tools.tables import table

PAGE = Path(__file__).parent.parent / "benchmarks" / "RESULTS.md"
HEADER = ("architecture", "SQNR", "integer share", "operators in integers", "in float, the most frequent")
MOST_FREQUENT = 3


def main() -> None:
    """Measure, and write the table."""
    measured = {}
    for name, architecture in ARCHITECTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            measured[name] = measure(architecture, Path(folder))
        print(f"{name}: {measured[name].sqnr_db:.1f} dB")
    write_part(PAGE, "sqnr", table(HEADER, [row(name, found) for name, found in measured.items()]))
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
        ", ".join(f"{count} {op}" for op, count in most_frequent(floats)) or "none",
    ]


def most_frequent(floats: Counter[str]) -> list[tuple[str, int]]:
    """Return the operators that most layers in float have, of equal ones by name."""
    return sorted(floats.items(), key=lambda item: (-item[1], item[0]))[:MOST_FREQUENT]


if __name__ == "__main__":
    main()
