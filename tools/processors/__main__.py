"""Run the int8 files of the samples on emulated processors, and compare what they give.

python -m tools.processors                            on all of them
python -m tools.processors haswell wasm               on these
python -m tools.processors haswell --cases FOLDER     on a folder of ptq verify --pack

``ptq quantize`` makes the samples' files anew, and ``ptq verify`` packs their cases and judges the answers.
Emulators are downloaded once, into ``.emulation``. The exit status is 1 if a processor gives something else,
and 2 if one could not be tried.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ptq_cli.core.errors import PtqError
from ptq_cli.devices.device_answers import run_answers
from ptq_cli.devices.run_cases import MANIFEST
from ptq_cli.evaluation.document.device_document import DeviceAnswer
from tools.processors.emulators import PROCESSORS, FailedError, UnavailableError, run_cases

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".emulation"
# The sample of each file, and what ``ptq quantize`` is told.
FILES = {
    "cifar10_cnn": ("cifar10_cnn", "model.pt"),
    "spoken_digits": ("spoken_digits_transformer", "model.pt"),
    "spoken_digits-dynamic": ("spoken_digits_transformer", "model.pt", "--preset", "dynamic_int8"),
    "detector": ("shapes_detector", "model.onnx"),
    "language_model": ("shakespeare_language_model", "model.onnx"),
}
SAME, DIFFERENT, NOT_TRIED = "same", "DIFFERENT", "not tried"
# How much SQNR outputs may lose: which values are rounded otherwise is chance, and moves others.
LOST_DB = 1.0


def main(words: Sequence[str]) -> int:
    """Try each processor, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.processors", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("processors", nargs="*", metavar="PROCESSOR", help=f"of {', '.join(PROCESSORS)}")
    parser.add_argument(
        "--cases", nargs="+", type=Path, default=[], metavar="FOLDER", help="of ptq verify --pack"
    )
    asked = parser.parse_args(words)
    names = asked.processors or list(PROCESSORS)
    if unknown := set(names) - set(PROCESSORS):
        parser.error(f"no processor is called {sorted(unknown)[0]}; there are {', '.join(PROCESSORS)}")
    given = {cases.name: cases for cases in map(Path.resolve, asked.cases)}
    if len(given) < len(asked.cases):
        parser.error("two folders of cases have the same name, which their answers are called by")
    for cases in given.values():
        if not (cases / MANIFEST).is_file():
            parser.error(f"'{cases}' is no folder of cases: it has no {MANIFEST}")
    folders = given or {name: packed_file(name) for name in FILES}
    results = {name: try_processor(name, folders) for name in names}
    print()
    for name, result in results.items():
        print(f"{name:12}  {PROCESSORS[name].title:32}  {result}")
    found = set(results.values())
    return 1 if DIFFERENT in found else 2 if NOT_TRIED in found else 0


def packed_file(name: str) -> Path:
    """Quantize a sample, and return the folder of its cases."""
    sample, *words = FILES[name]
    run, cases = CACHE / "runs" / name, CACHE / "cases" / name
    for command in (
        ["quantize", *words, "--run", str(run)],
        ["verify", "--run", str(run), "--pack", str(cases)],
    ):
        subprocess.run(
            [sys.executable, "-m", "ptq_cli", *command, "--quiet"],
            cwd=ROOT / "sample_models" / sample,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    print(f"packed {name}", flush=True)
    return cases


def try_processor(name: str, folders: dict[str, Path]) -> str:
    """Run all cases on a processor, print a line for each file, and return the result."""
    results = set()
    for file, cases in folders.items():
        answer = CACHE / "answers" / f"{file}-{name}.safetensors"
        answer.parent.mkdir(parents=True, exist_ok=True)
        try:
            run_cases(name, cases, CACHE, answer)
            (device,) = run_answers(answer, cases).devices
        except UnavailableError as error:
            print(f"{name:12}  cannot be tried here: {error}", flush=True)
            return NOT_TRIED
        except (FailedError, PtqError) as error:
            print(f"{name:12}  {file}: failed: {error}", flush=True)
            results.add(DIFFERENT)
            continue
        result, text = judge(device)
        results.add(result)
        print(f"{name:12}  {file:22}  {result:9}  {text}", flush=True)
    return DIFFERENT if DIFFERENT in results else SAME


def judge(device: DeviceAnswer) -> tuple[str, str]:
    """Return whether a device computes the same, and what it gave."""
    exact = sum(kernel.exact for kernel in device.kernels)
    texts = [f"{exact} of {len(device.kernels)} kernels exact"]
    if device.first_difference is not None:
        texts.append(f"first that differs: {device.first_difference}")
    texts += [f"{item.sqnr_db:.2f} dB, expected {item.expected_sqnr_db:.2f}" for item in device.outputs]
    near = all(item.sqnr_db >= item.expected_sqnr_db - LOST_DB for item in device.outputs)
    same = exact == len(device.kernels) and near and not device.fault
    return SAME if same else DIFFERENT, "; ".join([*texts, *filter(None, [device.fault])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
