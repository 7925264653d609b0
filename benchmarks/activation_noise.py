"""What 8-bit activations alone cost the speech sample, and what its input's part of that is.

python -m benchmarks.activation_noise            print the table
python -m benchmarks.activation_noise --write    also write it to benchmarks/RESULTS.md
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from benchmarks.results_page import is_to_write, print_part
from benchmarks.timing import run_ptq
from ptq_cli.core.tensors import Array
from ptq_cli.recovery.recovery_samples import output_sqnr
from ptq_cli.runtime.session import Session

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_models" / "spoken_digits_transformer"
FIRST, BATCH = "embedding", 50
"""The layer that reads the features, and how many recordings run together."""
EXPORTS: Mapping[str, Sequence[str]] = {
    "all layers": (),
    "all layers, `--recover weighed`": ("--recover", "weighed"),
    f"`--exclude {FIRST}`": ("--exclude", FIRST),
}
HEADER = ("integers", "SQNR", "the same with float weights")


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure the noise of activations in the speech sample.")
    lines = [f"| {' | '.join(HEADER)} |", f"| {' | '.join('---' for _ in HEADER)} |", *rows()]
    print_part("activation_noise", lines, write=write)


def rows() -> list[str]:
    """Calibrate once, and return a line for each export."""
    with np.load(SAMPLE / "eval.npz") as file:
        data = {name: file[name] for name in ("features", "mask")}
    lines = []
    with tempfile.TemporaryDirectory() as run:
        run_ptq(["calibrate", "--run", run], SAMPLE)
        floating = onnx.load(Path(run) / "model.float.onnx")
        wanted = outputs(floating, data)
        for name, words in EXPORTS.items():
            run_ptq(["export", "--run", run, "--reset", *words], SAMPLE)
            quantized = onnx.load(Path(run) / "model.int8.onnx")
            found = [outputs(model, data) for model in (quantized, with_float_weights(quantized, floating))]
            shown = [f"{output_sqnr(wanted, made):.2f} dB" for made in found]
            lines.append(f"| {' | '.join((name, *shown))} |")
    return lines


def outputs(model: onnx.ModelProto, data: Mapping[str, Array]) -> list[list[Array]]:
    """Return what a model makes of the data, batch by batch."""
    session = Session(model.SerializeToString(), threads=1)
    count = len(next(iter(data.values())))
    return [
        session.run({name: array[start : start + BATCH] for name, array in data.items()})
        for start in range(0, count, BATCH)
    ]


def with_float_weights(quantized: onnx.ModelProto, floating: onnx.ModelProto) -> onnx.ModelProto:
    """Return a quantized model whose nodes read the float constants: only activations are integers."""
    made = onnx.ModelProto()
    made.CopyFrom(quantized)
    constants = {item.name: item for item in floating.graph.initializer}
    before = {node.name: node for node in floating.graph.node}
    held = {item.name for item in made.graph.initializer}
    for node in made.graph.node:
        source = before.get(node.name)
        if source is None or source.op_type != node.op_type:
            continue
        for index, name in enumerate(source.input):
            if name in constants:
                node.input[index] = name
                if name not in held:
                    made.graph.initializer.append(constants[name])
                    held.add(name)
    return made


if __name__ == "__main__":
    main()
