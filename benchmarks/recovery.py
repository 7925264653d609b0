"""What ``--recover`` brings beside rounding to nearest, and what it takes.

python -m benchmarks.recovery                    print the tables
python -m benchmarks.recovery --write            also write them to benchmarks/RESULTS.md
python -m benchmarks.recovery --folder FOLDER    another model, in a folder with ptq.toml as the samples have

With ``--folder`` the table is that of the ResNet that ``benchmarks.plain_resnet`` trains.
"""

import resource
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results_page import between, print_part, result_parser
from benchmarks.timing import evaluate_run, run_ptq, seconds

ROOT = Path(__file__).parent.parent
SAMPLES = ("cifar10_cnn", "spoken_digits_transformer")
BITS = ((8, 8), (4, 8), (3, 8), (4, 4))  # Of weights and of activations
EIGHT = 8
WAYS = {
    "to nearest": (),
    "to nearest, `--set amax.weight_method=mse`": ("--set", "amax.weight_method=mse"),
    "`--set recovery.rungs=round`": ("--set", "recovery.rungs=round"),
}
# Of 4-bit activations alone, each with a calibration of its own, since channels get factors before it.
WAYS_OF_FEW = {
    "`--set recovery.rungs=equalize,smooth,ranges,round`": (
        "--set",
        "recovery.rungs=equalize,smooth,ranges,round",
    ),
    "`--recover all`": ("--recover", "all"),
}
HEADER = (
    "weights",
    "activations",
    "rounding",
    "top-1",
    "drop, 95 % interval",
    "agreement",
    "SQNR",
    "s",
    "CPU s",
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Measure recovery of accuracy on the sample models.")
    parser.add_argument(
        "--folder",
        type=Path,
        help="another model, in a folder with ptq.toml: that of benchmarks.plain_resnet",
    )
    arguments = parser.parse_args()
    folders = [arguments.folder] if arguments.folder else [ROOT / "sample_models" / name for name in SAMPLES]
    part = "recovery_resnet" if arguments.folder else "recovery"
    print_part(part, between(table(folder.resolve()) for folder in folders), write=arguments.write)


def table(folder: Path) -> str:
    """Return the table of one model: every layer with so many bits."""
    found = list(rows(folder))
    lines = [f"| {' | '.join(HEADER)} |", f"| {' | '.join('---' for _ in HEADER)} |"]
    lines += [f"| {' | '.join(row)} |" for row in found[1:]]
    return f"{folder.name}, float {found[0][0]}:\n\n" + "\n".join(lines)


def rows(folder: Path) -> Iterator[Sequence[str]]:
    """Yield the float model's top-1, then a row for each width and way of rounding."""
    is_first = True
    with tempfile.TemporaryDirectory() as run:
        run_ptq(["calibrate", "--run", run], folder)
        for bits, of_activations in BITS:
            ways = WAYS if of_activations == EIGHT else {**WAYS, **WAYS_OF_FEW}
            for way, words in ways.items():
                widths = ["--set", f"weights.bits={bits}"]
                if of_activations < EIGHT:  # With few steps, a range that holds all values wastes most.
                    widths += ["--set", f"activations.bits={of_activations}", "--set", "amax.method=mse"]
                if way in WAYS_OF_FEW:
                    run_ptq(["calibrate", "--run", run, *widths, *words], folder)
                command = ["export", "--run", run, "--reset", *widths, *words]
                before = _children()
                taken = seconds(lambda command=command: run_ptq(command, folder))  # type: ignore[misc]
                spent = _children() - before
                report = evaluate_run(run, folder)
                metrics = {item["name"]: item for item in report["metrics"]}
                if is_first:
                    yield (f"{metrics['top1']['float_value']:.2%} of {report['evaluation']['samples']:,}",)
                    is_first = False
                times = f"{taken:.1f}", f"{spent:.1f}"
                yield f"{bits} bits", f"{of_activations} bits", way, *_shown(metrics), *times


def _shown(metrics: dict[str, dict[str, Any]]) -> Iterator[str]:
    top1 = metrics["top1"]
    low, high = (100 * top1["drop_interval"][end] for end in ("low", "high"))
    drop = 100 * (top1["float_value"] - top1["quantized_value"])
    yield f"{top1['quantized_value']:.2%}"
    yield f"{drop:.2f} points ({low:.2f} to {high:.2f})"
    yield f"{metrics['top1_agreement']['quantized_value']:.2%}"
    yield f"{metrics['sqnr_db']['quantized_value']:.2f} dB"


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
