"""What defaults of ptq, ONNX Runtime's script and NNCF hand over: worst output, speed and size, in one run.

python -m benchmarks.defaults DIR                      the networks of a folder, as for benchmarks/zoo.py
python -m benchmarks.defaults DIR --only a,b --write   replace the rows of these networks
python -m benchmarks.defaults DIR --nncf PYTHON        beside NNCF, in a Python with nncf, openvino and onnx

All models of a network take turns, one sample at a time on one thread, and speed is processor time of the
user's file over theirs. The cost of ptq's default is its processor time beside that of ``--recover none``.
``python -m benchmarks.architectures DIR`` makes a folder of well-known architectures.
"""

import resource
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import onnxruntime

from benchmarks.each_network import table_line
from benchmarks.results_page import networks_parser, print_part, processor
from benchmarks.timing import run_ptq
from benchmarks.zoo import find_networks
from benchmarks.zoo_network import Judge, Quantized, quantize_with_script, reason_of

BY_NNCF = Path(__file__).parent / "peers" / "by_nncf.py"
COLUMNS = ("model", "`--recover none`", "default", "time of both", "ONNX Runtime's script", "NNCF")
LONGEST = 900  # seconds of a peer


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = networks_parser("Compare defaults.", 48)
    parser.add_argument("--nncf", metavar="PYTHON", help="of an environment with nncf, openvino and onnx")
    parser.add_argument("--seconds", type=float, default=6.0, help="to measure the speeds of each network")
    arguments = parser.parse_args()
    onnxruntime.set_default_logger_severity(3)
    folders = find_networks(arguments.folder, arguments.only)
    lines = _table(folders, arguments.samples, arguments.seconds, arguments.nncf)
    # Speeds on processors with and without VNNI are not to be mixed.
    part = "defaults_vnni" if "VNNI" in processor() else "defaults"
    print_part(part, lines, write=arguments.write, keep_rows=True)


def _table(folders: Sequence[Path], samples: int, seconds: float, nncf: str | None) -> Iterator[str]:
    yield table_line(*COLUMNS)
    yield f"|{'---|' * len(COLUMNS)}"
    for folder in folders:
        with tempfile.TemporaryDirectory() as scratch:
            yield table_line(*_row(folder, Path(scratch), samples, seconds, nncf))


def _row(folder: Path, scratch: Path, samples: int, seconds: float, nncf: str | None) -> Iterator[str]:
    judge = Judge(folder, samples)
    ways = {way: partial(_with_ptq, way) for way in ("none", "auto")} | {"script": _with_script}
    if nncf is not None:
        ways["nncf"] = partial(_with_nncf, nncf)
    found: dict[str, Quantized | str] = {}
    files, spent = {}, {}
    for way, quantize in ways.items():
        before = _processor_time()
        try:
            files[way] = quantize(folder, scratch, samples)
            spent[way] = _processor_time() - before
            found[way] = judge.compare(files[way], "")
        except Exception as error:  # noqa: BLE001 - a peer may raise anything, which is its result
            files.pop(way, None)
            found[way] = reason_of(error)
    speeds = dict(zip(files, judge.speeds([*files.values()], seconds), strict=True))
    floats = sum(path.stat().st_size for path in folder.glob("model.onnx*"))
    yield folder.name
    for way in ("none", "auto", "time", "script", "nncf"):
        item = found.get(way, "")
        if way == "time":
            both = [spent[name] for name in ("none", "auto") if name in spent]
            yield ", ".join(f"{taken:.0f} s" for taken in both)
        elif isinstance(item, str):
            yield item
        else:
            yield f"{item.sqnr_db:.1f} dB, {speeds[way]:.2f}, {files[way].stat().st_size / floats:.0%}"


def _with_ptq(way: str, folder: Path, scratch: Path, samples: int) -> Path:
    words = ["quantize", str(folder / "model.onnx"), "--data", str(folder / "calib.npz"), "--run", way]
    words += [
        "--samples",
        str(samples),
        "--set",
        f"recovery.rungs={way}",
        "--set",
        "evaluation.latency=false",
    ]
    prefer = ["--prefer", "accuracy"] if way == "none" else []
    run_ptq([*words, *prefer, "--set", "runtime.threads=1"], scratch)
    return scratch / way / "model_int8.onnx"


def _with_script(folder: Path, scratch: Path, samples: int) -> Path:
    return quantize_with_script(folder, scratch, samples)[0]


def _with_nncf(python: str, folder: Path, scratch: Path, samples: int) -> Path:
    file = scratch / "nncf.onnx"
    command = [python, BY_NNCF, folder / "model.onnx", folder / "calib.npz", file, "--method", "default"]
    given = [*map(str, command), "--samples", str(samples)]
    subprocess.run(given, cwd=scratch, check=True, capture_output=True, text=True, timeout=LONGEST)
    return file


def _processor_time() -> float:
    """Return the processor time of this process and of those that it waited for."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in found)


if __name__ == "__main__":
    main()
