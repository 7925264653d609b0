"""Make exports of the samples again on emulated processors, and compare their bytes.

python -m tools.processors.rederive                     on all of them
python -m tools.processors.rederive nehalem cortex-a72  on these

Exports without recovery are made here, with 1 and with 8 threads, and made again by what ``ptq verify
--rederive`` does. The exit status is 1 if a processor gives other bytes, and 2 if one could not be tried.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.processors.__main__ import CACHE, DIFFERENT, FILES, NOT_TRIED, ROOT, SAME
from tools.processors.emulators import (
    PROCESSORS,
    UnavailableError,
    aarch64_python,
    install_aarch64,
    whole,
    x86_64_python,
)

SAMPLES = ("cifar10_cnn", "spoken_digits")
# What decides ranges and integers otherwise than the default, by the name of the file.
EXPORTS = {
    "max": "--amax max",
    "mse": "--amax mse --set amax.weight_method=mse",
    "entropy": "--amax entropy",
    "w4": "--weight-bits 4 --set activations.symmetric=true",
    "a4": "--set activations.bits=4 --amax mse",
    "tensorrt": "--target tensorrt",
    "generic": "--target generic",
}
NEEDED = (
    *("click", "jinja2", "lazy_loader", "networkx", "numba", "onnx", "onnx-ir", "onnxscript", "pillow"),
    *("rich", "safetensors", "tokenizers", "tomli-w", "tqdm"),
)
NUMPY_WITHOUT = {"NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR", "OPENBLAS_CORETYPE": "Haswell"}
HOURS = 2


def main(words: Sequence[str]) -> int:
    """Try each processor, and return the exit status."""
    names = [name for name, item in PROCESSORS.items() if item.emulator in ("none", "x86_64", "aarch64")]
    parser = argparse.ArgumentParser(
        prog="python -m tools.processors.rederive", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("processors", nargs="*", metavar="PROCESSOR", help=f"of {', '.join(names)}")
    asked = parser.parse_args(words).processors or names
    if unknown := set(asked) - set(names):
        parser.error(f"no processor is called {sorted(unknown)[0]}; there are {', '.join(names)}")
    runs = [exported(name) for name in SAMPLES]
    results = {name: tried(name, runs) for name in asked}
    print()
    for name, result in results.items():
        print(f"{name:12}  {PROCESSORS[name].title:32}  {result}")
    found = set(results.values())
    return 1 if DIFFERENT in found else 2 if NOT_TRIED in found else 0


def exported(name: str) -> Path:
    """Quantize a sample, export it in each other way, and return the run directory."""
    sample, *words = FILES[name]
    run = CACHE / "exports" / name
    _ptq(sample, ["quantize", *words, "--recover", "none", "--run", str(run)])
    for file, options in EXPORTS.items():
        made = []
        for threads in ("8", "1"):
            output = run / f"{file}.onnx"
            command = ["export", "--run", str(run), *options.split(), "--recover", "none", "-o", str(output)]
            _ptq(sample, [*command, "--set", f"runtime.threads={threads}"])
            made.append(output.read_bytes())
        if made[0] != made[1]:
            raise SystemExit(f"{name}/{file}.onnx: other bytes with 8 threads than with 1")
    return run


def _ptq(sample: str, words: list[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "ptq_cli", *words, "--quiet"],
        cwd=ROOT / "sample_models" / sample,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def tried(name: str, runs: Sequence[Path]) -> str:
    """Make files again on a processor, print a line for each, and return the result."""
    processor = PROCESSORS[name]
    cache = CACHE / "compiled" / name  # numba's, whose key is the processor that numba believes to be on
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    try:
        if processor.emulator == "aarch64":
            packages = whole(CACHE / "aarch64-ptq", lambda folder: install_aarch64(folder, NEEDED))
            python = aarch64_python(processor.cpu, CACHE, f"{packages}:{ROOT}")
            environment.pop("PYTHONPATH")
        else:
            python = x86_64_python(processor.cpu, CACHE) if processor.cpu else [sys.executable]
    except UnavailableError as error:
        print(f"{name:12}  cannot be tried here: {error}", flush=True)
        return NOT_TRIED
    result = SAME
    for more in ({}, NUMPY_WITHOUT) if processor.emulator == "none" else ({},):
        done = subprocess.run(
            [*python, str(Path(__file__).with_name("again.py")), *map(str, runs)],
            env={**environment, **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=3600 * HOURS,
        )
        label = f"{name}, no AVX-512" if more else name
        for line in done.stdout.splitlines() or [f"exit status {done.returncode}: {done.stderr[-2000:]}"]:
            print(f"{label:16}  {line}", flush=True)
        result = SAME if result == SAME and done.returncode == 0 else DIFFERENT
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
