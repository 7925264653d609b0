"""What ``--recover`` equalize, smooth and auto bring to networks whose channels have unlike ranges.

python -m benchmarks.equalization                    print the table for the sample models
python -m benchmarks.equalization --write            also write it to benchmarks/RESULTS.md
python -m benchmarks.equalization --folder FOLDER    another model, too, in a folder with ptq.toml
python -m benchmarks.equalization --zoo DIR          networks, too: DIR/NAME/{model.onnx,calib.npz,eval.npz}

Each model is taken as it is, and with its channels multiplied by random numbers where they are made and
divided where they are read: it computes the same.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from benchmarks.results_page import print_part, result_parser
from benchmarks.timing import evaluate_run, run_ptq
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import rescale, scale_spaces

ROOT = Path(__file__).parent.parent
SAMPLES = ("cifar10_cnn", "spoken_digits_transformer")
WAYS = ("none", "auto", "equalize,smooth")
OCTAVES = 4.0  # Channels are multiplied by 2 to the power of -4 to 4
ZOO_SAMPLES = 24
HEADER = ("model", "channels", "`--recover`", "top-1", "SQNR")


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Measure equalization of channels.")
    parser.add_argument("--folder", type=Path, action="append", default=[], help="a model of your own")
    parser.add_argument("--zoo", type=Path, help="a folder of networks")
    arguments = parser.parse_args()
    folders = [ROOT / "sample_models" / name for name in SAMPLES] + arguments.folder
    found = [row for folder in folders for row in _sample_rows(folder.resolve())]
    if arguments.zoo:
        found += [row for folder in sorted(arguments.zoo.iterdir()) for row in _zoo_rows(folder)]
    lines = [f"| {' | '.join(HEADER)} |", f"| {' | '.join('---' for _ in HEADER)} |"]
    print_part("equalization", [*lines, *(f"| {' | '.join(row)} |" for row in found)], write=arguments.write)


def _sample_rows(folder: Path) -> Iterator[Sequence[str]]:
    with tempfile.TemporaryDirectory() as place:
        run_ptq(["calibrate", "--run", f"{place}/run", "--recover", "none"], folder)
        plain = Path(place) / "run" / "model.float.onnx"
        scaled = Path(place) / "scaled.onnx"
        scaled.write_bytes(with_unlike_channels(plain))
        for channels, path in (("as trained", plain), ("multiplied", scaled)):
            recipe = Path(place) / f"{path.stem}.toml"
            recipe.write_text(_recipe_of(folder, path))
            for way in WAYS:
                run = f"{place}/{path.stem}-{way}"
                run_ptq(
                    ["quantize", "--recipe", str(recipe), "--run", run, "--set", f"recovery.rungs={way}"],
                    Path(place),
                )
                yield (folder.name, channels, f"`{way}`", *_shown(evaluate_run(run, Path(place))))


def _zoo_rows(folder: Path) -> Iterator[Sequence[str]]:
    if not (folder / "eval.npz").is_file():
        return
    count = str(ZOO_SAMPLES)
    with tempfile.TemporaryDirectory() as place:
        for way in WAYS:
            run = f"{place}/{way}"
            words = [
                "quantize",
                str(folder / "model.onnx"),
                "--data",
                str(folder / "calib.npz"),
                "--run",
                run,
            ]
            words += [
                "--samples",
                count,
                "--eval-data",
                str(folder / "eval.npz"),
                "--set",
                f"evaluation.samples={count}",
            ]
            run_ptq([*words, "--set", f"recovery.rungs={way}", "--set", "run.evaluate=false"], Path(place))
            yield (folder.name, "as trained", f"`{way}`", *_shown(evaluate_run(run, Path(place))))


def with_unlike_channels(path: Path) -> bytes:
    """Return a prepared model with its channels multiplied where they are made and divided where read."""
    model = ir.load(path)
    trace = trace_scales(model.graph)
    random = np.random.default_rng(0)
    roots = [int(root) for space in scale_spaces(trace) for root in space.roots]
    rescale(model.graph, trace, {root: float(2 ** random.uniform(-OCTAVES, OCTAVES)) for root in roots})
    return serialize(model).content


def _recipe_of(folder: Path, model: Path) -> str:
    """Return the recipe of a folder for an ONNX file, with paths that hold anywhere."""
    lines = (folder / "ptq.toml").read_text().splitlines()
    return "\n".join(_placed(line, folder, model) for line in lines if not line.startswith("arch "))


def _placed(line: str, folder: Path, model: Path) -> str:
    key, _, value = line.partition(" = ")
    if key == "path":
        return f"path = '{model}'"
    name = value.strip("\"'")
    return f"data = '{folder / name}'" if key == "data" else line


def _shown(report: dict[str, Any]) -> Iterator[str]:
    metrics = {item["name"]: item for item in report["metrics"]}
    top1 = metrics.get("top1")
    yield f"{top1['quantized_value']:.2%} of {top1['float_value']:.2%}" if top1 else ""
    yield f"{metrics['sqnr_db']['quantized_value']:.2f} dB"


if __name__ == "__main__":
    main()
