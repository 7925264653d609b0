"""What recovery wins on a folder of networks, how many layers it leaves in float, and what they cost.

python -m benchmarks.float_layers DIR                     print the table; DIR as for benchmarks.zoo
python -m benchmarks.float_layers DIR --only a,b --write  these, and write it to benchmarks/RESULTS.md
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
from ptq_cli.qdq.metadata import FLOAT_LAYERS

FEW, SECONDS = 24, 5.0
HEADER = ("layers in float", "time expected", "time measured")


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = networks_parser("Measure what recovery wins, and its layers in float.", FEW)
    parser.add_argument("--recover", default="all", help="rungs, with float among them")
    arguments = parser.parse_args()
    folders = find_networks(arguments.folder, arguments.only)
    lines = _lines(folders, arguments.samples, arguments.recover)
    print_part("float_layers", lines, write=arguments.write)


def _lines(folders: Sequence[Path], samples: int, recover: str) -> Iterator[str]:
    header = ("network", "no recovery", f"`--recover {recover}`", *HEADER)
    yield from (table_line(*header), f"|{'---|' * len(header)}")
    for folder in folders:
        judge = Judge(folder, samples)
        with tempfile.TemporaryDirectory() as scratch:
            files = [_quantized(folder, Path(scratch) / rungs, rungs, samples) for rungs in ("none", recover)]
            sqnr = [f"{judge.compare(file, '').sqnr_db:.1f} dB" for file in files]
            integer, mixed = judge.speeds(files, SECONDS)
            props = {item.key: item.value for item in onnx.load(files[1]).metadata_props}
        found = json.loads(props[FLOAT_LAYERS])
        expected = f"{1.0 + found['slower']:.2f}" if found["layers"] else ""
        yield table_line(folder.name, *sqnr, f"{len(found['layers'])}", expected, f"{integer / mixed:.2f}")


def _quantized(folder: Path, run: Path, rungs: str, samples: int) -> Path:
    count = ["--samples", str(samples), "--threads", "1", "--set", "evaluation.latency=false"]
    words = ["quantize", "model.onnx", "--data", "calib.npz", "--recover", rungs, "--run", str(run), *count]
    run_ptq(words, folder)
    return run / "model.int8.onnx"


if __name__ == "__main__":
    main()
