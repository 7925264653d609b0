"""What a Conv costs in each form that ONNX Runtime computes, beside float, on one thread.

python -m benchmarks.conv_forms            print the table
python -m benchmarks.conv_forms --write    also write it to benchmarks/RESULTS.md

The forms take turns: pairs of uint8 and of uint16 around a Conv with int8 weights, and a ConvInteger whose
input's range is found at each run.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from string import Template

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from benchmarks.each_network import table_line
from benchmarks.results_page import is_to_write, print_part, processor
from benchmarks.speed import ratio_cell
from benchmarks.speed_network import opened, ratio_of
from ptq_cli.runtime.timing import Duration, repeat_with_new_sessions

SECONDS = 3.0
# Channels in and out, height and width, size of the filter.
SHAPES = ((32, 32, 56, 3), (64, 128, 28, 3), (128, 256, 14, 1), (256, 256, 7, 3))
PAIRS = """<ir_version: 10, opset_import: ["": 21]>
    g (float[1,$I,$S,$S] x) => (float[1,$O,$S,$S] y)
    <float a = {0.03}, TYPE z = {MIDDLE}, float b = {0.01}, int8[$O,$I,$K,$K] w, int8 u = {0}> {
    p = QuantizeLinear(x, a, z) q = DequantizeLinear(p, a, z) v = DequantizeLinear(w, b, u)
    c = Conv<pads = [$P, $P, $P, $P]>(q, v) r = QuantizeLinear(c, a, z) y = DequantizeLinear(r, a, z) }"""
FORMS = {
    "float": """<ir_version: 10, opset_import: ["": 21]>
    g (float[1,$I,$S,$S] x) => (float[1,$O,$S,$S] y)
    <float[$O,$I,$K,$K] w> { y = Conv<pads = [$P, $P, $P, $P]>(x, w) }""",
    "uint8 pairs": PAIRS.replace("TYPE", "uint8").replace("MIDDLE", "128"),
    "uint16 pairs": PAIRS.replace("TYPE", "uint16").replace("MIDDLE", "32768"),
    "ConvInteger": """<ir_version: 10, opset_import: ["": 21]>
    g (float[1,$I,$S,$S] x) => (float[1,$O,$S,$S] y)
    <float b = {0.01}, int8[$O,$I,$K,$K] w> {
    p, s, z = DynamicQuantizeLinear(x) c = ConvInteger<pads = [$P, $P, $P, $P]>(p, w, z)
    f = Cast<to = 1>(c) t = Mul(s, b) y = Mul(f, t) }""",
}


def main() -> None:
    """Parse the arguments, measure, and print or write the table."""
    write = is_to_write("Measure the forms of a Conv.")
    head = (
        f"`python -m benchmarks.conv_forms --write`, {processor()}, onnxruntime "
        f"{onnxruntime.__version__}, one thread; the processor time of each form over that of float, with "
        "its interval of 95 %, and the same by the clock in italics.",
        "",
        table_line("Conv", *list(FORMS)[1:]),
        f"|{'---|' * len(FORMS)}",
    )
    print_part("conv_forms", chain(head, (table_line(*cells(*shape)) for shape in SHAPES)), write=write)


def cells(channels: int, outputs: int, side: int, size: int) -> Iterator[str]:
    """Yield the cells of one Conv."""
    yield f"{channels} to {outputs} channels, {side} by {side}, filter {size} by {size}"
    random = np.random.default_rng(4)
    feed = {"x": random.normal(size=(1, channels, side, side)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        files = [
            _write(Path(folder) / f"{index}.onnx", text, (channels, outputs, side, size), random)
            for index, text in enumerate(FORMS.values())
        ]
        rounds = list(
            repeat_with_new_sessions(
                partial(opened, files, 1), len(files), [feed], Duration(SECONDS * len(files))
            )
        )
    for index in range(1, len(files)):
        # ``ratio_of`` tells how long another takes beside the first, which is the float form.
        yield ratio_cell(vars(ratio_of(rounds, index)))


def _write(file: Path, text: str, shape: tuple[int, int, int, int], random: np.random.Generator) -> Path:
    channels, outputs, side, size = shape
    sizes = {"I": channels, "O": outputs, "S": side, "K": size, "P": size // 2}
    text = Template(text).substitute(sizes)
    model = onnx.parser.parse_model(text)
    weight = random.integers(-100, 101, (outputs, channels, size, size)).astype(np.int8)
    values = weight if "int8[" in text else weight * np.float32(0.01)
    kept = [item for item in model.graph.initializer if item.name != "w"]
    inputs = [item for item in model.graph.input if item.name != "w"]
    del model.graph.initializer[:], model.graph.input[:]
    model.graph.initializer.extend([*kept, numpy_helper.from_array(values, "w")])
    model.graph.input.extend(inputs)
    onnx.save(model, file)
    return file


if __name__ == "__main__":
    main()
