"""Speed of the files of ``ptq``, of ``quantize_static`` and of the user, on a folder of networks.

python -m benchmarks.speed DIR                     print the tables
python -m benchmarks.speed DIR --write             also write them to benchmarks/RESULTS.md
python -m benchmarks.speed DIR --only a,cnn --batches 1 --threads 1    some of it

DIR is laid out as for ``benchmarks.zoo``: a folder with ``model.onnx``, ``calib.npz`` and ``eval.npz`` for
each network. The CNN sample (``cnn``) and a model of ResNet-50's shape (``resnet50``) are measured, too. Each
network has a process of its own, whose files take turns, for each batch and number of threads:

    the user's file, the float model as ptq prepares it, and ptq's default;
    ``--prefer latency``, which is exported for that batch and these threads;
    ptq without rewrites for speed, and the file of ``quantize_static`` with uint8 activations, if it runs;
    ``--prefer latency --set quantization.runtime_operators=true``, for a network with SiLU
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.each_network import Found, measured_table, table_line
from benchmarks.models import write_images, write_resnet50
from benchmarks.network_files import RUNTIME
from benchmarks.results_page import networks_parser, print_part, processor
from benchmarks.speed_network import DEFAULT, FLOAT, LATENCY, PLAIN, THEIRS, USER
from benchmarks.static_quantization import CNN, write_decoded
from benchmarks.timing import run_ptq
from benchmarks.zoo import find_networks

SAMPLES, SECONDS = 48, 3.0
LONGEST_NETWORK = 600  # Seconds after which a network is given up
OWN = ("cnn", "resnet50")  # Networks that need no DIR
SPEEDS = (USER, FLOAT, DEFAULT, THEIRS)
COLUMNS = (
    "network", "batch", "threads", *(f"over {name}" for name in SPEEDS),
    "with `quantization.runtime_operators=true` over user's file",
    "in float", "SQNR", "expected over measured", "seconds to place",
)  # fmt: skip
ACCURACY = ("network", "layers in integers", DEFAULT, PLAIN, LATENCY, THEIRS)


def main() -> None:
    """Parse the arguments, measure, and print or write the tables."""
    parser = networks_parser("Measure the speed of quantized networks.", SAMPLES)
    parser.add_argument("--batches", default="1,8", help="batch sizes, separated by commas")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="to measure each batch and number of threads"
    )
    arguments = parser.parse_args()
    options = {name: str(getattr(arguments, name)) for name in ("samples", "seconds", "batches", "threads")}
    part = "speed" if "1" in arguments.threads.split(",") else "speed_threads"
    with tempfile.TemporaryDirectory() as scratch:
        folders = list(_folders(arguments.folder, arguments.only, Path(scratch)))
        asked = options | ({"only": ",".join(arguments.only)} if arguments.only else {})
        print_part(part, report(folders, options, asked), write=arguments.write)


def _folders(folder: Path, only: Sequence[str] | None, scratch: Path) -> Iterator[Path]:
    own = [name for name in OWN if only is None or name in only]
    others = [name for name in only if name not in OWN] if only is not None else None
    for name in own:
        made = scratch / name
        made.mkdir()
        _MAKERS[name](made)
        yield made
    if others is None or others:
        yield from find_networks(folder, others)


def write_cnn(folder: Path) -> None:
    """Write the CNN sample and its data as a folder of a network."""
    run_ptq(["export", "--float", str(CNN / "model.pt"), "-o", str(folder / "model.onnx")], CNN)
    write_decoded("calibration", folder / "calib.npz")
    write_decoded("evaluation", folder / "eval.npz")


def _write_resnet50(folder: Path) -> None:
    write_resnet50(folder / "model.onnx")
    write_images(folder / "calib.npz", 24)
    write_images(folder / "eval.npz", 24, seed=3)


_MAKERS = {"cnn": write_cnn, "resnet50": _write_resnet50}


def report(folders: Sequence[Path], options: Mapping[str, str], asked: Mapping[str, str]) -> Iterator[str]:
    """Measure the networks, and yield the lines of both tables and what they say together."""
    shown = " ".join(f"--{name} {asked[name]}" for name in ("batches", "threads", "only") if name in asked)
    yield (
        f"`python -m benchmarks.speed DIR {shown} --write`, {processor()}, onnxruntime "
        f"{onnxruntime.__version__}; at most {options['samples']} samples to calibrate with and as many "
        "others for the SQNR. The speeds are those of the file of `--prefer latency`: the processor time of "
        "the other file over its own, with the interval of 95 %, and the same by the clock in italics. *In "
        "float* is how many layers stay in float because they are faster so. *Expected over measured* "
        "compares fast runs. *Seconds to place* is what `--prefer latency` adds to an export."
    )
    yield ""
    found = yield from measured_table(
        "speed_network", folders, options, LONGEST_NETWORK, COLUMNS, speed_cells
    )
    yield from ("", *_together(found), "")
    yield "SQNR against the user's file, of the worst output, and why there is no file:"
    yield from ("", f"| {' | '.join(ACCURACY)} |", f"|{'---|' * len(ACCURACY)}")
    for network in found:
        yield table_line(*accuracy_cells(network))


def speed_cells(network: Found, measured: Found) -> Iterator[str]:
    """Yield the cells of a batch and number of threads."""
    yield from (network["name"], str(measured["batch"]), str(measured["threads"]))
    ratios = measured["ratios"]
    for other in SPEEDS:
        yield ratio_cell(ratios.get(other))
    own = ratios.get(RUNTIME)
    yield f"{ratios[USER]['processor'] / own['processor']:.2f}" if own is not None else ""
    kept = "all" if measured["all_float"] else str(measured["in_float"])
    yield f"not decided: {measured['undecided']}" if measured["undecided"] else kept
    yield decibels(measured["sqnr"])
    yield f"{measured['expected'] / measured['found']:.2f}"
    yield f"{measured['seconds']:.1f}"


def ratio_cell(ratio: Found | None) -> str:
    """Return a ratio as text.

    Example:
        >>> ratio_cell({"processor": 1.234, "low": 1.2, "high": 1.3, "wall": 1.19})
        '1.23 (1.20 to 1.30) *1.19*'
        >>> ratio_cell(None)
        ''
    """
    if ratio is None:
        return ""
    return f"{ratio['processor']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}) *{ratio['wall']:.2f}*"


def decibels(value: float | None) -> str:
    """Return an SQNR as text.

    Example:
        >>> decibels(22.94), decibels(float("inf")), decibels(130.2), decibels(None)
        ('22.9 dB', 'as float', 'as float', '')
    """
    if value is None:
        return ""
    return f"{value:.1f} dB" if value < AS_FLOAT else "as float"


AS_FLOAT = 100.0  # dB: more than that is the rounding of floats


def _together(found: Sequence[Found]) -> Iterator[str]:
    """Yield the lines that say what all rows have in common."""
    rows = [(network["name"], item) for network in found for item in network["measured"]]
    for other in (USER, FLOAT, THEIRS):
        ratios = [
            (item["ratios"][other]["processor"], f"{name}, batch {item['batch']}, threads {item['threads']}")
            for name, item in rows
            if other in item["ratios"]
        ]
        if not ratios:
            continue
        mean = math.exp(float(np.mean([math.log(ratio) for ratio, _ in ratios])))
        least, where = min(ratios)
        yield f"- Over {other}: {mean:.2f} in the geometric mean, {least:.2f} at least ({where})."
    errors = [abs(item["expected"] / item["found"] - 1) for _, item in rows]
    if errors:
        middle, most = np.median(errors), max(errors)
        yield f"- Expected times are off by {middle:.0%} in the median, by {most:.0%} at most."


def accuracy_cells(network: Found) -> Iterator[str]:
    """Yield the cells of a network's accuracy."""
    yield from (network["name"], str(network["layers"]))
    values, failed = network["sqnr"], network["failed"]
    least = min((item["sqnr"] for item in network["measured"]), default=None)
    for name in ACCURACY[2:]:
        value = least if name == LATENCY else values.get(name)
        yield failed.get(name, "") if value is None else decibels(value)


if __name__ == "__main__":
    main()
