"""Speed of fake quantization compared with PyTorch's own, eager and compiled.

python -m benchmarks.quantizers            print the table
python -m benchmarks.quantizers --write    also write it to benchmarks/RESULTS.md
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks.results_page import print_part, processor, result_parser
from benchmarks.timing import Work, median_ratio, take_turns
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize
from ptq_cli.quantizers.scaled.tensor_quant import fake_tensor_quant
from ptq_cli.runtime.machine import usable_cores

ROWS = COLUMNS = 4096  # 16 M floats
ROUNDS = 9
AMAX = 4.0

Quantizer = Callable[[torch.Tensor], torch.Tensor]
Row = tuple[str, str, str]


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Measure how fast fake quantization is.")
    parser.add_argument("--peak", choices=list(PEAKS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if arguments.peak:
        print(copies(arguments.peak))
        return
    lines = [
        f"`python -m benchmarks.quantizers --write`, {processor()}, {torch.get_num_threads()} of "
        f"{usable_cores()} cores; medians of {ROUNDS} rounds in which the candidates take turns. A tensor of "
        f"{ROWS:,} x {COLUMNS:,} floats, int8. A speed is the other function's time over ours.",
        "",
        "| measurement | required | measured |",
        "|---|---|---|",
        *(f"| {what} | {asked} | {found} |" for what, asked, found in rows()),
    ]
    print_part("quantizers", lines, write=arguments.write)


def rows() -> Iterator[Row]:
    """Measure, and yield the measurement, the requirement and the result."""
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    one, many = torch.tensor(AMAX), torch.full((ROWS, 1), AMAX)
    yield from compare("eager", x, one, many, "at least 0.6", lambda function: function)
    yield from compare("compiled", x, one, many, "at least 1.0", partial(torch.compile, fullgraph=True))
    yield from peaks()


def compare(
    mode: str,
    x: torch.Tensor,
    one: torch.Tensor,
    many: torch.Tensor,
    asked: str,
    make: Callable[[Quantizer], Quantizer],
) -> Iterator[Row]:
    """Compare our functions with PyTorch's, and with a copy: one read and one write are the minimum."""
    scale, zero = many.reshape(-1) / 127, torch.zeros(ROWS, dtype=torch.int32)
    ours = [
        make(lambda x: fake_tensor_quant(x, one)),
        make(lambda x: fake_tensor_quant(x, many)),
        make(lambda x: fake_quantize(x, one)),
    ]
    theirs: list[Quantizer] = [
        lambda x: torch.fake_quantize_per_tensor_affine(x, AMAX / 127, 0, -127, 127),
        lambda x: torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -127, 127),
    ]
    works: list[Work] = [partial(function, x) for function in [*ours, *map(make, theirs), torch.clone]]
    tensor, axis, onnx, their_tensor, their_axis, copy = take_turns(works, ROUNDS)
    name = f"speed over `torch.fake_quantize_per_{{}}_affine`, {mode}"
    yield name.format("tensor"), asked, f"{median_ratio(their_tensor, tensor):.2f}"
    yield name.format("channel"), asked, f"{median_ratio(their_axis, axis):.2f}"
    yield f"time per axis over per tensor, {mode}", "at most 1.3", f"{median_ratio(axis, tensor):.2f}"
    yield f"time of ONNX's arithmetic over NVIDIA's, {mode}", "", f"{median_ratio(onnx, tensor):.2f}"
    yield f"time over that of a copy, {mode}", "", f"{median_ratio(tensor, copy):.2f}"
    yield f"gigabytes per second, {mode}", "", f"{8e-9 * x.numel() / median(tensor):.1f}"
    backward = take_turns([partial(train, function, x) for function in (ours[0], make(theirs[0]))], ROUNDS)
    found = median_ratio(backward[1], backward[0])
    yield f"speed with the gradient over `torch.fake_quantize_per_tensor_affine`, {mode}", "", f"{found:.2f}"


def train(function: Quantizer, x: torch.Tensor) -> None:
    """Compute the values and the gradient once."""
    leaf = x.detach().requires_grad_()
    function(leaf).sum().backward()  # type: ignore[no-untyped-call]


def peaks() -> Iterator[Row]:
    """Measure the memory, each in its own process."""
    for name in PEAKS:
        command = [sys.executable, "-m", "benchmarks.quantizers", "--peak", name]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        yield f"peak memory in copies of the input, including the input, {name}", "at most 3", found


def _forward(x: torch.Tensor) -> None:
    fake_tensor_quant(x, torch.tensor(AMAX))


def _per_axis(x: torch.Tensor) -> None:
    fake_tensor_quant(x, torch.full((len(x), 1), AMAX))


PEAKS: dict[str, tuple[torch.dtype, Callable[[torch.Tensor], None]]] = {
    "float32": (torch.float32, _forward),
    "float32 per axis": (torch.float32, _per_axis),
    "float16": (torch.float16, _forward),
    "float32 with the gradient": (
        torch.float32,
        partial(train, lambda x: fake_tensor_quant(x, torch.tensor(AMAX))),
    ),
}


def copies(name: str) -> str:
    """Return the peak memory of one call, including the input, over the size of the input."""
    dtype, work = PEAKS[name]
    work(torch.ones(8, 8, dtype=dtype))
    before = peak_bytes()
    x = torch.ones(ROWS, COLUMNS, dtype=dtype)
    work(x)
    return f"{(peak_bytes() - before) / (x.numel() * x.element_size()):.2f}"


def peak_bytes() -> int:
    """Return the peak resident memory of this process; ``getrusage`` would include that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main()
