"""Peak memory of a model that is too large for one file, relative to the model.

python -m benchmarks.large_model            print the table
python -m benchmarks.large_model --write    also write it to benchmarks/RESULTS.md
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.results_page import is_to_write, print_part, processor
from benchmarks.timing import peak_anonymous_bytes, peak_bytes
from tests.large_models import write_large

WIDTH, LAYERS = 8192, 10
DECODER_LAYERS = 15
"""Of as many parameters as a language model of 1 billion."""
COMMANDS = (
    ("calibrate", "calibrate large.onnx --data x.npz --batch-size 2", "at most 1.3"),
    ("export", "export", "at most 1.3"),
    ("evaluate", "evaluate --eval-data x.npz", "at most 1.3"),
    (
        "quantize: all stages in one process",
        "quantize large.onnx --data x.npz --batch-size 2 --run one",
        "at most 1.3",
    ),
)


WEIGHTS = (
    ("prepare, without data", "calibrate large.onnx --preset w4_block32"),
    ("export 4 bits in blocks", "export --preset w4_block32"),
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure the peak memory on a model of 2.7 GB.")
    print_part("large_model", measure(), write=write)
    print_part("large_weights", measure_weights(), write=write)


def measure() -> list[str]:
    """Return the lines of the table."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        size = write_large(folder / "large.onnx", width=WIDTH, layers=LAYERS)
        x = np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32)
        np.savez(folder / "x.npz", x=x)
        peaks = [(what, peak_bytes(words.split(), folder), asked) for what, words, asked in COMMANDS]
    return [
        f"`python -m benchmarks.large_model --write`, {processor()}; {LAYERS} layers of {WIDTH} by "
        f"{WIDTH}, {size / 1e9:.2f} GB with external data. Peak resident memory, including mapped pages.",
        "",
        "| measurement | required | times the model |",
        "|---|---|---|",
        *(f"| {what} | {asked} | {peak / size:.2f} |" for what, peak, asked in peaks),
    ]


def measure_weights() -> list[str]:
    """Return the lines of the table on weights alone: no data, 4 bits in blocks of 32."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        size = write_large(folder / "large.onnx", width=WIDTH, layers=DECODER_LAYERS)
        peaks = [
            (what, peak_bytes(words.split(), folder), peak_anonymous_bytes(words.split(), folder))
            for what, words in WEIGHTS
        ]
        written = sum(path.stat().st_size for path in (folder / "ptq-run").glob("model.w4.onnx*"))
    layer = 4 * WIDTH**2
    limit = 1.3 * layer + written
    return [
        f"`python -m benchmarks.large_model --write`, {processor()}; {DECODER_LAYERS} layers of "
        f"{WIDTH} by {WIDTH}, {size / 4e9:.2f} billion parameters, {size / 1e9:.2f} GB in float32 with "
        f"external data. The file with 4 bits has {written / 1e9:.2f} GB, {100 * written / size:.1f} % of "
        "float. Resident memory at its peak, with pages of mapped files, and in a second run without them: "
        "the libraries take about 0.1 GB of either.",
        "",
        "| measurement | required of the export | peak, with mapped pages | without |",
        "|---|---|---|---|",
        *(
            f"| {what} | 1.3 times a layer and the file: {limit / 1e9:.2f} GB | {peak / 1e9:.2f} GB "
            f"| {anonymous / 1e9:.2f} GB |"
            for what, peak, anonymous in peaks
        ),
    ]


if __name__ == "__main__":
    main()
