"""Run the int8 files of the samples on emulated processors, and judge what they give.

python -m tools.processors                    on all of them
python -m tools.processors --kernels          the integer kernels alone
python -m tools.processors haswell wasm       on these

``ptq quantize`` makes the files anew. Emulators are downloaded once, into ``.emulation``. The exit status is
1 if a processor gives something else, and 2 if one could not be tried.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.pipeline.setup.resolve import Request, reading_of, resolve
from ptq_cli.qdq.read.quantized_file import open_quantized
from tools.processors.emulators import PROCESSORS, UnavailableError, run_pack
from tools.processors.judge import Verdict, judge
from tools.processors.kernels import Tensors
from tools.processors.packs import FailedError, QuantizedFile, write_pack

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".emulation"
FILES = {
    "cifar10_cnn": ("cifar10_cnn", "model.pt"),
    "spoken_digits": ("spoken_digits_transformer", "model.pt"),
    "spoken_digits-dynamic": ("spoken_digits_transformer", "model.pt", "--preset", "dynamic_int8"),
    "detector": ("shapes_detector", "model.onnx"),
    "language_model": ("shakespeare_language_model", "model.onnx"),
}
"""The sample of each file, and what ``ptq quantize`` is told."""
OF_KERNELS, OF_FILES = (1, 2), (1, 8)
"""Sizes of the batches: with one sample ONNX Runtime takes other kernels than with several."""
SAME, DIFFERENT, NOT_TRIED = "same", "DIFFERENT", "not tried"


def main(words: Sequence[str]) -> int:
    """Try each processor, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.processors", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("processors", nargs="*", metavar="PROCESSOR", help=f"of {', '.join(PROCESSORS)}")
    parser.add_argument("--kernels", action="store_true", help="leave out the whole files")
    arguments = parser.parse_args(words)
    names = arguments.processors or list(PROCESSORS)
    if unknown := set(names) - set(PROCESSORS):
        parser.error(f"no processor is called {sorted(unknown)[0]}; there are {', '.join(PROCESSORS)}")
    files = [quantized_file(name) for name in FILES]
    pack = CACHE / "pack"
    write_pack(pack, files, whole=not arguments.kernels)
    rows = [try_processor(name, pack) for name in names]
    print(f"\n{'processor':12}  {'what it is':32}  {'kernels':>10}  {'files':>6}")
    for name, (result, kernels, whole) in zip(names, rows, strict=True):
        print(f"{name:12}  {PROCESSORS[name].title:32}  {kernels:>10}  {whole:>6}  {result}")
    results = {row[0] for row in rows}
    return 1 if DIFFERENT in results else 2 if NOT_TRIED in results else 0


def quantized_file(name: str) -> QuantizedFile:
    """Quantize a sample, and return the file with samples of its evaluation data."""
    sample, *words = FILES[name]
    folder, run, start = ROOT / "sample_models" / sample, CACHE / "runs" / name, time.perf_counter()
    command = [sys.executable, "-m", "ptq_cli", "quantize", *words, "--run", str(run), "--quiet"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    path = run / "model.int8.onnx"
    recipe = resolve(Request(settings={}, folder=folder)).recipe
    inputs = input_specs(open_quantized(path))
    if recipe.evaluation.data is None:
        raise ValueError(f"{folder / 'ptq.toml'} names no evaluation data")
    dataset = bind_inputs(reading_of(recipe).open(recipe.evaluation.data, max(OF_FILES)), inputs)
    batches: dict[int, Tensors] = {
        size: next(dataset.batches(size)).inputs for size in {*OF_KERNELS, *OF_FILES}
    }
    print(f"quantized {name} in {time.perf_counter() - start:.0f} s", flush=True)
    return QuantizedFile(
        name=name,
        content=path.read_bytes(),
        batches=[batches[size] for size in OF_FILES],
        kernel_batches=[batches[size] for size in OF_KERNELS],
    )


def try_processor(name: str, pack: Path) -> tuple[str, str, str]:
    """Run a pack on a processor, print a line for each case, and return the result and what is different."""
    try:
        verdicts = judge(pack, run_pack(name, pack, CACHE))
    except UnavailableError as error:
        print(f"{name:12}  cannot be tried here: {error}", flush=True)
        return NOT_TRIED, "", ""
    except FailedError as error:
        print(f"{name:12}  failed: {error}", flush=True)
        return DIFFERENT, "", ""
    for verdict in verdicts:
        print(f"{name:12}  {line_of(verdict)}", flush=True)
    kernels, whole = ([item for item in verdicts if bool(item.kernels) is alone] for alone in (True, False))
    return (
        DIFFERENT if any(item.differing for item in verdicts) else SAME,
        f"{sum(item.differing for item in kernels)} of {sum(item.kernels for item in kernels)}",
        f"{sum(bool(item.differing) for item in whole)} of {len(whole)}" if whole else "",
    )


def line_of(verdict: Verdict) -> str:
    """Return what is said of a case.

    Example:
        >>> line_of(Verdict(case="cnn.kernels", kernels=33, differing=21, text="21 QLinearConv", seconds=0.4))
        'cnn.kernels                        0.4 s  21 of 33 differ: 21 QLinearConv'
    """
    parts = f"{verdict.differing} of {verdict.kernels} differ" if verdict.kernels else "differs"
    found = (parts if verdict.differing else "same", verdict.text)
    return f"{verdict.case:32} {verdict.seconds:5.1f} s  {': '.join(filter(None, found))}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
