"""How much of what saturation costs files of other tools ``ptq repair`` gives back, and how long it takes.

python -m benchmarks.repair DIR                    print the table
python -m benchmarks.repair DIR --only a,b --samples 100 --write
python -m benchmarks.repair DIR --nncf PYTHON      NNCF's files as well, made by a Python that has nncf

DIR has a folder for each network, as for ``benchmarks.zoo``. What a file gives where sums saturate
is run on an emulated Haswell (``tools.processors``), which has AVX2 without VNNI; all else runs here.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import version_converter

from benchmarks.each_network import table_line
from benchmarks.results_page import networks_parser, print_part, processor
from benchmarks.zoo import find_networks
from benchmarks.zoo_network import feeds_of, reason_of, sqnr_db
from ptq_cli.core.tensors import Array
from ptq_cli.repair.run_repair import RepairOptions, run_repair
from ptq_cli.setup.resolve import Request
from tools.processors.__main__ import CACHE
from tools.processors.emulators import x86_64_words

SAMPLES, CALIBRATED = 100, 16
OPSET = 17  # of older networks, whose files of quantize_static are otherwise not valid
SATURATING = "Haswell-noTSX"
RUNNER = Path(__file__).with_name("run_file.py")
RUNS = ("repaired", "--float", "--float --data")
COLUMNS = ("network", "file", "saturating", "exact", *RUNS, "largest change", "time")
# ``floats`` are quantized as the file is loaded, as a module's export after training with fake quantization.
STATIC = {
    "quantize_static": (),
    "one scale a tensor": ("tensor",),
    "QOperator": ("operator",),
    "pairs behind floats": ("floats",),
}


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = networks_parser("Repair files of other tools.", SAMPLES)
    parser.add_argument("--nncf", type=Path, metavar="PYTHON", help="that has nncf and openvino")
    arguments = parser.parse_args()
    folders = list(find_networks(arguments.folder.resolve(), arguments.only))
    lines = table(folders, arguments.samples, arguments.nncf)
    print_part("repair", lines, write=arguments.write)


def table(folders: Sequence[Path], samples: int, nncf: Path | None) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"`python -m benchmarks.repair DIR`, {processor()}, onnxruntime {onnxruntime.__version__}. SQNR of "
        f"the worst output against the float model in dB, at most {samples} samples; in parentheses the "
        "share of the gap between *saturating* (AVX2 without VNNI, emulated) and *exact* that it closes."
    )
    yield from ("", table_line(*COLUMNS), f"|{'---|' * len(COLUMNS)}")
    for folder in folders:
        for name in (*STATIC, *(["NNCF"] if nncf else [])):
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    yield table_line(folder.name, name, *_row(folder, Path(scratch), name, samples, nncf))
                except Exception as error:  # noqa: BLE001 - the other files are measured all the same
                    yield table_line(folder.name, name, reason_of(error), columns=len(COLUMNS))


def _row(folder: Path, scratch: Path, name: str, samples: int, nncf: Path | None) -> Iterator[str]:
    network, file = _recent(folder / "model.onnx", scratch), scratch / "file.onnx"
    if name in STATIC:
        _quantize(network, folder / "calib.npz", file, STATIC[name])
    else:
        peer = Path(__file__).parent / "peers" / "by_nncf.py"
        words = [str(item) for item in (network, folder / "calib.npz", file)]
        flags = ["--samples", str(CALIBRATED), "--method", "default"]
        subprocess.run([str(nncf), str(peer), *words, *flags], check=True, capture_output=True)
    data = folder / "eval.npz"
    wanted = _run(folder / "model.onnx", data, samples)
    saturating = _sqnr(wanted, _run(file, data, samples, SATURATING))
    exact = _sqnr(wanted, _run(file, data, samples))
    yield from (f"{saturating:.2f}", f"{exact:.2f}")
    changes, seconds = [], []
    for floats, given in ((None, {}), (network, {}), (network, {"data": str(folder / "calib.npz")})):
        output = scratch / "repaired.onnx"
        options = RepairOptions(float_model=floats, output=output)
        begin = time.perf_counter()
        result = run_repair(Request(settings=given), file, options)
        seconds.append(time.perf_counter() - begin)
        changes.append(max((item.largest_change for item in result.changed), default=0.0))
        here = _run(output, data, samples)
        found = _sqnr(wanted, here)
        gap = exact - saturating
        share = f" ({(found - saturating) / gap:.0%})" if gap > 1 else ""
        yield f"{found:.2f}{share}"
    yield from (f"{max(changes):.1f} steps", f"{min(seconds[:2]):.2f} s")


def _recent(network: Path, scratch: Path) -> Path:
    model = onnx.load(network)
    if min(item.version for item in model.opset_import if not item.domain) >= 13:
        return network
    onnx.save(version_converter.convert_version(model, OPSET), scratch / "recent.onnx")
    return scratch / "recent.onnx"


def _quantize(network: Path, data: Path, file: Path, how: Sequence[str]) -> None:
    """Run ``quantize_static`` with unsigned activations and signed weights, per channel if not ``tensor``."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self._feeds = feeds_of(data, CALIBRATED)

        def get_next(self) -> dict[str, Array] | None:
            return next(self._feeds, None)

    prepared = file.with_name("prepared.onnx")
    with redirect_stdout(StringIO()), chdir(file.parent):
        quant_pre_process(str(network), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(file),
        Reader(),
        quant_format=QuantFormat.QOperator if "operator" in how else QuantFormat.QDQ,
        per_channel="tensor" not in how,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"AddQDQPairToWeight": "floats" in how},
    )


def _run(file: Path, data: Path, samples: int, cpu: str = "") -> list[Array]:
    """Return the outputs of a file, by a process of its own that an emulator may run."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as kept:
        words = [*(x86_64_words(cpu, CACHE) if cpu else []), sys.executable, str(RUNNER)]
        command = [*words, str(file), str(data), str(samples), kept.name]
        subprocess.run(command, check=True, capture_output=True, text=True)
        with np.load(kept.name) as arrays:
            return [arrays[name] for name in arrays.files]


def _sqnr(wanted: Sequence[Array], found: Sequence[Array]) -> float:
    return min(sqnr_db([one], [other]) for one, other in zip(wanted, found, strict=True))


if __name__ == "__main__":
    main()
