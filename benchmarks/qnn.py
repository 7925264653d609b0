"""Files for Qualcomm's HTP on its simulator: where operators are placed, and what accuracy is left.

python -m benchmarks.qnn DIR                     print the table
python -m benchmarks.qnn DIR --write             also write its rows to benchmarks/RESULTS.md
python -m benchmarks.qnn DIR --only cnn,nudenet --samples 16    these networks, with fewer samples

DIR is laid out as for ``benchmarks.zoo``. Three sample models are measured, too. It needs ``pip install
onnxruntime-qnn``, whose licence forbids to pass it on. The simulator tells no speeds of a device.
"""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.each_network import Found, measured_table
from benchmarks.qnn_network import SAMPLE_MODELS
from benchmarks.results_page import networks_parser, print_part
from benchmarks.speed import decibels
from benchmarks.zoo import find_networks
from ptq_cli.runtime.qnn import MODULE

SAMPLES = 64
LONGEST_NETWORK = 1800  # Seconds after which a network is given up
COLUMNS = (
    "network", "samples", "operators in integers", "in float16", "on the CPU",
    "SQNR on the simulator", "on ONNX Runtime", "float", "on the simulator",
)  # fmt: skip


def main() -> None:
    """Parse the arguments, measure, and print or write the table."""
    parser = networks_parser("Measure files for Qualcomm's HTP on its simulator.", SAMPLES)
    arguments = parser.parse_args()
    if importlib.util.find_spec(MODULE) is None:
        sys.exit("this benchmark needs onnxruntime-qnn: pip install onnxruntime-qnn")
    folders = list(_folders(arguments.folder, arguments.only))
    lines = measured_table(
        "qnn_network", folders, {"samples": arguments.samples}, LONGEST_NETWORK, COLUMNS, cells
    )
    print_part("qnn", lines, write=arguments.write, keep_rows=True)


def _folders(folder: Path, only: Sequence[str] | None) -> Iterator[Path]:
    yield from (place for name, place in SAMPLE_MODELS.items() if only is None or name in only)
    others = [name for name in only if name not in SAMPLE_MODELS] if only is not None else None
    if others is None or others:
        yield from find_networks(folder, others)


def cells(network: Found, measured: Found) -> Iterator[str]:
    """Yield the cells of a network with activations of one type.

    Example:
        >>> measured = {"activations": "uint8", "integer": 7, "floats": {}, "cpu": {"Erf": 2}, "htp_db": 30.0}
        >>> rest = {"runtime_db": 31.0, "metric": "top1", "float_value": 0.9, "htp_value": 0.89}
        >>> list(cells({"name": "a", "samples": 8}, {**measured, **rest}))
        ['a', '8', '7', '', '2 Erf', '30.0 dB', '31.0 dB', 'top1 0.900', '0.890']
    """
    wide = "" if measured["activations"] == "uint8" else f", {measured['activations']}"
    yield from (f"{network['name']}{wide}", str(network["samples"]), str(measured["integer"]))
    for place in ("floats", "cpu"):
        yield ", ".join(f"{count} {op}" for op, count in measured[place].items())
    yield from (decibels(measured["htp_db"]), decibels(measured["runtime_db"]))
    has_metric = bool(measured["metric"])
    yield f"{measured['metric']} {measured['float_value']:.3f}" if has_metric else ""
    yield f"{measured['htp_value']:.3f}" if has_metric else ""


if __name__ == "__main__":
    main()
