"""Where the processor time of ``ptq quantize --recover all`` goes, beside one forward pass over the data.

python -m benchmarks.recovery_profile DIR                      the networks of a folder, as for benchmarks.zoo
python -m benchmarks.recovery_profile DIR --only a,b --write   replace the rows of these networks

``resnet50``, ResNet-50's shape with random weights of 4 bits, is made if ``--only`` names it.

Each runs with one thread in this process, and samples of the main thread's stack say what it waits for. A
first run on a machine compiles the kernels; run it twice. *Announced* is what ``recover`` would say before it
chooses weights, *taken* what the rung ``round`` took.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from unittest import mock

from benchmarks.each_network import table_line
from benchmarks.models import write_images, write_resnet50
from benchmarks.results_page import networks_parser, print_part
from benchmarks.zoo import find_networks
from benchmarks.zoo_network import feeds_of
from ptq_cli.cli.main import run
from ptq_cli.recover import recover_rounding as recovering
from ptq_cli.recover.rung_work import seconds_of
from ptq_cli.runtime.session import Session

# Files and functions that a sample is counted for: the innermost one of a stack decides.
PARTS = {
    "calibration": (("measure", ""), ("rescaling", "")),
    "ranges": (("range_choice", "choose_ranges"),),
    "moments": (("solve_layer", "_moments"),),
    "least squares": (("least_squares", "fit_least_squares"), ("solve_layer", "_share")),
    "search": (("code_search", "search_codes"),),
    "running": (("sample_stream", "run"),),
    "other recovery": (("recover_rounding", "recover_weights"),),
}
REST = "the rest"
EVERY = 0.01
RESNET50 = "resnet50"
COLUMNS = ("network", "forward pass", "all", *PARTS, REST, "announced, taken")


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    arguments = networks_parser("Profile recovery.", 48).parse_args()
    others = [name for name in arguments.only or () if name != RESNET50]
    folders = list(find_networks(arguments.folder, others)) if others or not arguments.only else []
    with tempfile.TemporaryDirectory() as scratch:
        if len(others) < len(arguments.only or ()):
            made = Path(scratch) / RESNET50
            made.mkdir()
            write_resnet50(made / "model.onnx")
            write_images(made / "calib.npz", arguments.samples)
            folders.append(made)
        lines = _table(folders, arguments.samples)
        print_part("recovery_profile", lines, write=arguments.write, keep_rows=True)


def forward_pass(model: Path, folder: Path, samples: int) -> float:
    """Return the processor time of the float model over the calibration data, in seconds."""
    source = folder / "calib.npz"
    feeds = list(feeds_of(source, samples))
    session = Session(model, threads=1)
    names = {spec.name for spec in session.inputs}
    fed = [{name: array for name, array in feed.items() if name in names} for feed in feeds]
    session.run(fed[0])
    begin = time.process_time()
    for feed in fed:
        session.run(feed)
    return time.process_time() - begin


def _table(folders: Sequence[Path], samples: int) -> Iterator[str]:
    yield table_line(*COLUMNS)
    yield f"|{'---|' * len(COLUMNS)}"
    for folder in folders:
        with tempfile.TemporaryDirectory() as scratch:
            yield _row(folder, Path(scratch), samples)


def _row(folder: Path, scratch: Path, samples: int) -> str:
    announced = [0.0]

    def tell(work: float, threads: int, longer_than: float) -> float:
        del longer_than
        announced[0] = seconds_of(work, threads, 0.0)
        return 0.0

    words = [
        "quantize",
        str(folder / "model.onnx"),
        "--data",
        str(folder / "calib.npz"),
        "--set",
        "runtime.threads=1",
    ]
    words += ["--samples", str(samples), "--run", str(scratch), "--recover", "all", "--quiet"]
    words += ["--set", "evaluation.latency=false"]
    words += ["--weight-bits", "4"] if folder.name == RESNET50 else []
    with mock.patch.object(recovering, "seconds_of", tell):
        spent, of_rungs = _profiled(words)
    forward = forward_pass(scratch / "model.float.onnx", folder, samples)
    total = sum(spent.values())
    return table_line(
        folder.name,
        f"{forward:.2f} s",
        f"{total:.1f} s, {total / forward:.0f} passes",
        *(f"{spent[part]:.1f} s" for part in (*PARTS, REST)),
        f"{announced[0]:.0f} s, {of_rungs:.0f} s",
    )


def _profiled(words: list[str]) -> tuple[dict[str, float], float]:
    """Return the processor time of each part of a command, and that of its rungs for weights."""
    spent: dict[str, float] = dict.fromkeys((*PARTS, REST), 0.0)
    main_thread, ended, rungs = threading.main_thread().ident or 0, threading.Event(), [0.0]

    def sample() -> None:
        last = time.process_time()
        while not ended.wait(EVERY):
            now = time.process_time()
            part, in_rungs = _part(sys._current_frames().get(main_thread))
            spent[part] += now - last
            rungs[0] += (now - last) * in_rungs
            last = now

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    status = run(words)
    ended.set()
    sampler.join()
    if status:
        raise RuntimeError(f"ptq {' '.join(words)} ended with {status}")
    return spent, rungs[0]


def _part(frame: FrameType | None) -> tuple[str, bool]:
    found, in_rungs = "", False
    while frame is not None:
        file, name = Path(frame.f_code.co_filename).stem, frame.f_code.co_name
        found = found or next(
            (part for part, ways in PARTS.items() if (file, name) in ways or (file, "") in ways), ""
        )
        in_rungs = in_rungs or (file, name) == ("recover_rounding", "recover_weights")
        frame = frame.f_back
    return found or REST, in_rungs


if __name__ == "__main__":
    main()
