"""A folder of trained networks, quantized by ptq and by ONNX Runtime's ``quantize_static``.

python -m benchmarks.zoo DIR                     print the table
python -m benchmarks.zoo DIR --write             also write it to benchmarks/RESULTS.md
python -m benchmarks.zoo DIR --only a,b --samples 16    these networks, with fewer samples

DIR has a folder for each network:

    NAME/model.onnx     the float network
    NAME/calib.npz      samples for the calibration: an array for each input, samples first
    NAME/eval.npz       other samples, to compare the networks on
    NAME/labels.json    the truth for eval.npz, where a task needs it:
                        {"label": [class, …]}, {"text": […], "characters": ["blank", …]} or
                        {"boxes": [[[left, top, right, bottom], …], …]} of lines in a map

Both ways have their defaults: ``ptq quantize``, and ``quantize_static`` after its preprocessing, with Q/DQ
per channel. If one fails, the table has the reason. Each network is measured in a process of its own, so that
its memory is free for the next.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks.each_network import measure_apart, table_line
from benchmarks.results_page import networks_parser, print_part, processor

SAMPLES, SECONDS = 48, 10.0
LONGEST_NETWORK = 600  # Seconds after which a network is given up
COLUMNS = ("network", "quantized by", "task", "SQNR", "worst channel", "file", "speed", "integer work")


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = networks_parser("Quantize a folder of networks, beside quantize_static.", SAMPLES)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to measure the speed of each network")
    arguments = parser.parse_args()
    folders = find_networks(arguments.folder, arguments.only)
    print_part("zoo", _report(folders, arguments.samples, arguments.seconds), write=arguments.write)


def find_networks(folder: Path, only: Sequence[str] | None) -> list[Path]:
    """Return the folders of networks, or of those that were asked for."""
    found = {path.parent.name: path.parent.resolve() for path in sorted(folder.glob("*/model.onnx"))}
    if missing := [name for name in only or () if name not in found]:
        sys.exit(f"'{folder}' has no network {', '.join(missing)}; it has {', '.join(found) or 'none'}")
    if not found:
        sys.exit(f"'{folder}' has no folder with a model.onnx")
    return [found[name] for name in only or found]


def _report(folders: Sequence[Path], samples: int, seconds: float) -> Iterator[str]:
    yield from (
        f"`python -m benchmarks.zoo DIR --write`, {processor()}, one thread, onnxruntime "
        f"{onnxruntime.__version__}; at most {samples} samples to calibrate with and as many others to "
        "evaluate on, one at a time. *SQNR* is that of the worst output; *file* is the share of the float "
        "file's size; *speed* is the float network's processor time over the quantized one's, from runs "
        "in which all take turns; *integer work* is the share of the multiply-accumulates in integers.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    )
    for folder in folders:
        limits = {"samples": samples, "seconds": seconds}
        yield from rows(folder.name, measure_apart("zoo_network", folder, limits, LONGEST_NETWORK))


def rows(network: str, found: Mapping[str, Any] | str) -> Iterator[str]:
    """Yield the lines of the table for a network: the float one, ours, theirs.

    Example:
        >>> print(*rows("a", "took more than 600 s"))
        | a |  | took more than 600 s |  |  |  |  |  |
    """
    if isinstance(found, str):
        yield table_line(network, "", found, columns=len(COLUMNS))
        return
    yield table_line(network, f"float, {found['samples']} samples", found["task"], columns=len(COLUMNS))
    for name, key in (("ptq", "ours"), ("quantize_static", "theirs")):
        result = found[key]
        if isinstance(result, str):
            yield table_line("", name, result, columns=len(COLUMNS))
            continue
        share, note, worst = result["integer_share"], result["note"], result["worst_channel_db"]
        yield table_line(
            "",
            f"{name} ({note})" if note else name,
            result["task"],
            f"{result['sqnr_db']:.1f} dB",
            "" if worst is None else f"{worst:.1f} dB",
            f"{result['size']:.1%}",
            f"{result['speed']:.2f}",
            "" if share is None else f"{share:.1%}",
        )


if __name__ == "__main__":
    main()
