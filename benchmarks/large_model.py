"""Peak memory of a model that is too large for one file, relative to the model.

python -m benchmarks.large_model            print the tables
python -m benchmarks.large_model --write    also write them to benchmarks/RESULTS.md
python -m benchmarks.large_model DIR        print those of layers of a model of 1.1 billion, which stay in DIR
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.models import DECODER_WIDTH, WORDS, write_decoder
from benchmarks.peers.spent import Spent, measured, ptq_way
from benchmarks.results_page import print_part, processor, result_parser
from benchmarks.timing import peak_anonymous_bytes, peak_bytes
from tests.large_models import write_large

WIDTH, LAYERS = 8192, 10
DECODER_LAYERS = 15  # Of as many parameters as a language model of 1 billion
COMMANDS = (
    ("calibrate", "calibrate large.onnx --data x.npz --set data.batch_size=2", "at most 1.3"),
    ("export", "export", "at most 1.3"),
    ("evaluate", "evaluate --eval-data x.npz", "at most 1.3"),
    (
        "quantize: all stages in one process",
        "quantize large.onnx --data x.npz --set data.batch_size=2 --run one",
        "at most 1.3",
    ),
)


WEIGHTS = (
    ("prepare, without data", "calibrate large.onnx --preset w4_block32"),
    ("export 4 bits in blocks", "export --preset w4_block32"),
)


FOUR_BITS = ("--preset", "w4_block32", "--set", "weights.symmetric=false", "--set", "runtime.threads=1")
LAYERS_OF_DECODER, SEQUENCES, LENGTH = 22, 8, 128
# Layers are measured with few words, and what is made of words by the difference of both.
FEW_WORDS, SOME_WORDS = 256, 8192


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Measure the peak memory on a model of 2.7 GB.")
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR")
    asked = parser.parse_args()
    if asked.folder is not None:
        print_part("large_decoder", measure_decoder(asked.folder), write=asked.write)
        return
    print_part("large_model", measure(), write=asked.write)
    print_part("large_weights", measure_weights(), write=asked.write)


def measure_decoder(folder: Path) -> list[str]:
    """Return the lines of the table on 4 bits chosen by data for layers of TinyLlama's shape."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = ((1, FEW_WORDS), (2, FEW_WORDS), (1, SOME_WORDS))
    found = {size: _quantized(folder, *size) for size in sizes}
    (one, each), (two, _), (words, _) = (found[size] for size in sizes)
    layer, of_words = two.less(one), words.less(one).times((WORDS - FEW_WORDS) / (SOME_WORDS - FEW_WORDS))
    plan = one.plus(layer.times(LAYERS_OF_DECODER - 1)).plus(of_words)
    per_word = 2 * 4 * DECODER_WIDTH
    rows = [
        *(
            (f"{count} layer{'s' * (count > 1)}, {size:,} words", 4 * each * count + per_word * size, spent)
            for (count, size), (spent, _) in found.items()
        ),
        ("*another layer*", 4 * each, layer),
        (f"*{WORDS:,} words instead of {FEW_WORDS}*", per_word * (WORDS - FEW_WORDS), of_words),
        (
            f"*plan: {LAYERS_OF_DECODER} layers, {WORDS:,} words*",
            4 * each * LAYERS_OF_DECODER + per_word * WORDS,
            plan,
        ),
    ]
    return [
        f"`python -m benchmarks.large_model DIR --write`, {processor()}, one thread; {SEQUENCES} sequences "
        f"of {LENGTH} tokens, `{' '.join(FOUR_BITS)}`; a layer has {each / 1e6:.0f} million parameters.",
        "",
        "| model | float32 | processor time | peak, with mapped pages |",
        "|---|---|---|---|",
        *(
            f"| {name} | {size / 1e9:.2f} GB | {spent.seconds:.0f} s | {spent.peak / 1e9:.2f} GB |"
            for name, size, spent in rows
        ),
    ]


def _quantized(folder: Path, layers: int, words: int) -> tuple[Spent, int]:
    name = f"{layers}-{words}"
    model, data = folder / f"{name}-float.onnx", folder / f"{words}.npz"
    each = write_decoder(model, layers=layers, words=words)
    ids = np.random.default_rng(3).integers(0, words, (SEQUENCES, LENGTH))
    np.savez(data, ids=ids)
    return measured(ptq_way(folder, name, (model, "--data", data), FOUR_BITS)), each


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
        written = sum(path.stat().st_size for path in (folder / "ptq-run").glob("model_q4.onnx*"))
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
