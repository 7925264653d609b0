"""What the weights and the activations of a quantized network cost, each by itself, as ``ptq analyze`` says.

python -m benchmarks.activation_noise            print the table of the samples
python -m benchmarks.activation_noise DIR        and a folder of networks, as benchmarks.zoo has it
python -m benchmarks.activation_noise --write    also write it to benchmarks/RESULTS.md
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.each_network import table_line
from benchmarks.results_page import networks_parser, print_part
from benchmarks.timing import run_ptq
from benchmarks.zoo import find_networks
from ptq_cli.core.documents import read_document
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.report.text.numbers import format_decibels

SAMPLES = Path(__file__).parent.parent / "sample_models"
# The sample that is exported in further ways, and its layer that reads the features.
SPEECH, FIRST = "spoken_digits_transformer", "embedding"
FURTHER = (("--exclude", FIRST),)
HEADER = ("network", "weights only", "activations only", "both")
FEW = 16  # Samples of a network of the folder, to calibrate and to analyze with


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    description = "Measure what weights and activations cost."
    arguments = networks_parser(description, FEW, is_optional=True).parse_args()
    networks = find_networks(arguments.folder, arguments.only) if arguments.folder else []
    print_part("activation_noise", _lines(networks, arguments.samples), write=arguments.write)


def _lines(networks: Sequence[Path], samples: int) -> Iterator[str]:
    yield from (table_line(*HEADER), f"|{'---|' * len(HEADER)}")
    for folder in sorted(path.parent for path in SAMPLES.glob("*/ptq.toml")):
        exports = ((), *FURTHER) if folder.name == SPEECH else ((),)
        yield from _rows(folder, ["calibrate"], [], exports)
    for folder in networks:
        count = ["--samples", str(samples), "--set", "data.batch_size=1"]
        calibrate = ["calibrate", "model.onnx", "--data", "calib.npz", *count]
        yield from _rows(folder, calibrate, ["--eval-data", "eval.npz", *count], ((),))


def _rows(
    folder: Path, calibrate: Sequence[str], data: Sequence[str], exports: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Calibrate once, and yield a line for each export."""
    with tempfile.TemporaryDirectory() as run:
        run_ptq([*calibrate, "--run", run], folder)
        for words in exports:
            run_ptq(["export", "--run", run, "--reset", *words], folder)
            run_ptq(["analyze", "--run", run, "--no-sensitivity", *data], folder)
            shares = read_document(Analysis, Path(run) / "analysis.json").shares
            found = (shares.weights, shares.activations, shares.both)
            name = f"{folder.name}, `{' '.join(words)}`" if words else folder.name
            yield table_line(
                name, *("none" if item is None else format_decibels(item.sqnr_db) for item in found)
            )


if __name__ == "__main__":
    main()
