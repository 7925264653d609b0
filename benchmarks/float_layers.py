"""What recovery wins on a folder of networks, how many layers it leaves in float, and what they cost.

python -m benchmarks.float_layers DIR                     print the table; DIR as for benchmarks.zoo
python -m benchmarks.float_layers DIR --only a,b --write  these, and write it to benchmarks/RESULTS.md
python -m benchmarks.float_layers DIR --only a --float-time 0.1,0.5 --write    what more time would give
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from benchmarks.each_network import table_line
from benchmarks.results_page import networks_parser, print_part
from benchmarks.timing import run_ptq
from benchmarks.zoo import find_networks
from benchmarks.zoo_network import Judge
from ptq_cli.qdq.read.quantized_file import MetadataKey

FEW, SECONDS = 24, 5.0
DEFAULT = (0.1,)
HEADER = ("layers in float", "time expected", "time measured")


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = networks_parser("Measure what recovery wins, and its layers in float.", FEW)
    parser.add_argument("--recover", default="all", help="rungs, with float among them")
    parser.add_argument(
        "--float-time", type=_shares, default=DEFAULT, help="values of recovery.float_time: a row for each"
    )
    arguments = parser.parse_args()
    folders = find_networks(arguments.folder, arguments.only)
    times = arguments.float_time
    lines = _lines(folders, arguments.samples, arguments.recover, times)
    print_part("float_layers" if times == DEFAULT else "float_times", lines, write=arguments.write)


def _shares(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _lines(folders: Sequence[Path], samples: int, recover: str, times: Sequence[float]) -> Iterator[str]:
    header = ("network", "no recovery", f"`--recover {recover}`", *HEADER)
    yield from (table_line(*header), f"|{'---|' * len(header)}")
    for folder in folders:
        judge = Judge(folder, samples)
        with tempfile.TemporaryDirectory() as scratch:
            asked = [("none", DEFAULT[0]), *((recover, limit) for limit in times)]
            files = [
                _quantized(folder, Path(scratch) / str(index), *each, samples)
                for index, each in enumerate(asked)
            ]
            before, *sqnr = (f"{judge.compare(file, '').sqnr_db:.1f} dB" for file in files)
            integer, *mixed = judge.speeds(files, SECONDS)
            props = [{item.key: item.value for item in onnx.load(file).metadata_props} for file in files[1:]]
        for own_sqnr, own, speed in zip(sqnr, props, mixed, strict=True):
            found = json.loads(own[MetadataKey.FLOAT_LAYERS])
            expected = f"{1.0 + found['slower']:.2f}" if found["layers"] else ""
            measured = f"{integer / speed:.2f}"
            yield table_line(folder.name, before, own_sqnr, f"{len(found['layers'])}", expected, measured)


def _quantized(folder: Path, run: Path, rungs: str, limit: float, samples: int) -> Path:
    count = ["--samples", str(samples), "--set", "runtime.threads=1", "--set", "evaluation.latency=false"]
    choices = ["--recover", rungs, "--set", f"recovery.float_time={limit}"]
    run_ptq(["quantize", "model.onnx", "--data", "calib.npz", *choices, "--run", str(run), *count], folder)
    return run / "model.int8.onnx"


if __name__ == "__main__":
    main()
