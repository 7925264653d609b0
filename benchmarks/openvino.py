"""Speed and accuracy on OpenVINO of the files of ``ptq`` and of NNCF, on a folder of networks.

python -m benchmarks.openvino DIR                     print the table
python -m benchmarks.openvino DIR --write             also write it to benchmarks/RESULTS.md
python -m benchmarks.openvino DIR --only a,cnn --samples 16    these networks, with fewer samples

DIR is laid out as for ``benchmarks.zoo``: a folder with ``model.onnx``, ``calib.npz`` and ``eval.npz`` for
each network. The CNN sample (``cnn``) is measured, too. It needs ``pip install openvino nncf``.

Both ways have their defaults and the same samples: ``ptq quantize --target openvino``, and ``nncf.quantize``.
Each network has a process of its own, in which both files and the float network take turns on OpenVINO with
one thread.
"""

import importlib.util
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.each_network import Found, measured_table
from benchmarks.results_page import networks_parser, print_part, processor
from benchmarks.speed import decibels, write_cnn
from benchmarks.zoo import find_networks

SAMPLES, SECONDS, BATCHES = 32, 4.0, "1,8"
LONGEST_NETWORK = 900  # Seconds after which a network is given up
CNN = "cnn"  # A network that needs no DIR
NEEDED = ("openvino", "nncf")
COLUMNS = (
    "network", "batch", "ptq over NNCF", "ptq over float", "NNCF over float", "SQNR of ptq", "SQNR of NNCF",
)  # fmt: skip


def main() -> None:
    """Parse the arguments, measure, and print or write the table."""
    parser = networks_parser("Compare ptq's files with NNCF's on OpenVINO.", SAMPLES)
    parser.add_argument("--batches", default=BATCHES, help="batch sizes, separated by commas")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to measure each batch size")
    arguments = parser.parse_args()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        sys.exit(f"this benchmark needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    options = {name: str(getattr(arguments, name)) for name in ("samples", "seconds", "batches")}
    with tempfile.TemporaryDirectory() as scratch:
        print_part(
            "openvino",
            report(list(_folders(arguments.folder, arguments.only, Path(scratch))), options),
            write=arguments.write,
        )


def _folders(folder: Path, only: Sequence[str] | None, scratch: Path) -> Iterator[Path]:
    if only is None or CNN in only:
        made = scratch / CNN
        made.mkdir()
        write_cnn(made)
        yield made
    others = [name for name in only if name != CNN] if only is not None else None
    if others is None or others:
        yield from find_networks(folder, others)


def report(folders: Sequence[Path], options: Mapping[str, str]) -> Iterator[str]:
    """Measure the networks, and yield the lines of the table and what they say together."""
    yield (
        f"`python -m benchmarks.openvino DIR --samples {options['samples']} --write`, {processor()}, "
        f"openvino {version('openvino')}, nncf {version('nncf')}; at most {options['samples']} samples to "
        "calibrate with and as many others for the SQNR, which is that of the worst output against the float "
        "network. *Over* is how many times as fast a file is, in processor time of one thread, with the "
        "interval of 95 %."
    )
    yield ""
    found = yield from measured_table("openvino_network", folders, options, LONGEST_NETWORK, COLUMNS, cells)
    yield from ("", *together(found))


def cells(network: Found, measured: Found) -> Iterator[str]:
    """Yield the cells of a network at a batch size."""
    yield from (network["name"], str(measured["batch"]))
    for name in ("over_theirs", "over_float", "theirs_over_float"):
        yield speed_cell(measured[name])
    yield from (decibels(network["ours_db"]), decibels(network["theirs_db"]))


def speed_cell(speed: Found) -> str:
    """Return a ratio of speeds as text.

    Example:
        >>> speed_cell({"value": 1.234, "low": 1.2, "high": 1.3})
        '1.23 (1.20 to 1.30)'
        >>> speed_cell({"value": 1.234, "low": None, "high": None})
        '1.23'
    """
    between = f" ({speed['low']:.2f} to {speed['high']:.2f})" if speed["low"] is not None else ""
    return f"{speed['value']:.2f}{between}"


def together(found: Sequence[Found]) -> Iterator[str]:
    """Yield the lines that say what all networks have in common.

    Example:
        >>> measured = [{"batch": batch, "over_theirs": {"value": batch / 2}} for batch in (1, 2)]
        >>> for line in together([{"name": "a", "ours_db": 30.0, "theirs_db": 31, "measured": measured}]):
        ...     print(line)
        - ptq over NNCF: 0.71 in the geometric mean, 0.50 at least (a, batch 1).
        - SQNR of ptq less that of NNCF: -1.0 dB in the median, -1.0 dB at least (a).
    """
    speeds = [
        (item["over_theirs"]["value"], f"{network['name']}, batch {item['batch']}")
        for network in found
        for item in network["measured"]
    ]
    if speeds:
        mean = math.exp(float(np.mean([math.log(speed) for speed, _ in speeds])))
        least, where = min(speeds)
        yield f"- ptq over NNCF: {mean:.2f} in the geometric mean, {least:.2f} at least ({where})."
    gains = [(network["ours_db"] - network["theirs_db"], network["name"]) for network in found]
    if gains:
        middle, (gain, name) = float(np.median([value for value, _ in gains])), min(gains)
        least_gain = f"{gain:+.1f} dB at least ({name})"
        yield f"- SQNR of ptq less that of NNCF: {middle:+.1f} dB in the median, {least_gain}."


if __name__ == "__main__":
    main()
