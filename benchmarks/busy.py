"""Cost of a busy neighbor: the stages of the main job alone, and beside a process that keeps a core busy.

python -m benchmarks.busy            print the table
python -m benchmarks.busy --write    also write it to benchmarks/RESULTS.md

Each stage runs as ptq runs it, and with threads that spin while they wait, which is the default of ONNX
Runtime and of PyTorch. In each round, each of them runs alone, and then beside the neighbor.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.busy_jobs import SPINNING
from benchmarks.results_page import print_part, processor, result_parser
from benchmarks.turns import Contestant
from ptq_cli.runtime.machine import usable_cores

ROOT = Path(__file__).parent.parent
CNN = ROOT / "sample_models" / "cifar10_cnn"
ROUNDS = 7
LIMIT = 2.0
QUIET_CORES = 0.1  # Cores that other processes may use on a machine that counts as quiet
NEIGHBOR = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(10**6):
        pass
"""
STAGES = {
    "calibrate": ("calibration, histogram, 512 images", CNN / "calib", 512),
    "evaluate": ("evaluation of both models, 500 images", CNN / "eval", 500),
    "to ONNX": ("PyTorch to ONNX, with the comparison", CNN / "calib", 2),
    "PyTorch": ("the PyTorch model, 64 images", CNN / "calib", 64),
}
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Turn:
    """One turn of a stage: its seconds, and the cores that other processes and the host took meanwhile."""

    seconds: float
    others: float
    stolen: float


@dataclass(frozen=True)
class Stage:
    """The turns of one stage, round by round."""

    name: str
    quiet: tuple[Turn, ...]
    busy: tuple[Turn, ...]

    @property
    def ratio(self) -> float:
        """The time beside the neighbor over the time alone."""
        return median(busy.seconds / quiet.seconds for busy, quiet in zip(self.busy, self.quiet, strict=True))


class Neighbor:
    """A process that keeps a core busy on request; it ends when this process ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", NEIGHBOR])
        self._process.send_signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep a core busy inside the block."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Measure how much a busy process slows down each stage.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--stage", choices=list(STAGES), help="run only this stage")
    arguments = parser.parse_args()
    # make sets it to 1, and then the threads that spin by default would not spin.
    os.environ.pop("OMP_NUM_THREADS", None)
    names = [arguments.stage] if arguments.stage else list(STAGES)
    stages = [stage for name in names for stage in measure_stage(name, arguments.rounds)]
    print_part("busy", _lines(stages, arguments.rounds), write=arguments.write)


def measure_stage(name: str, rounds: int) -> list[Stage]:
    """Return the turns of a stage as ptq runs it, and with threads that spin."""
    _, data, samples = STAGES[name]
    names = [name, name + SPINNING]
    contestants = [
        Contestant(each, CNN / "model.pt", data, samples, "benchmarks.busy_jobs") for each in names
    ]
    neighbor = Neighbor()
    try:
        for contestant in contestants:
            contestant.work()
        turns = [[_both(contestant, neighbor) for contestant in contestants] for _ in range(rounds)]
    finally:
        neighbor.close()
        for contestant in contestants:
            contestant.close()
    columns = [tuple(zip(*column, strict=True)) for column in zip(*turns, strict=True)]
    return [Stage(each, *column) for each, column in zip(names, columns, strict=True)]


def _both(contestant: Contestant, neighbor: Neighbor) -> tuple[Turn, Turn]:
    quiet = _turn(contestant, neighbor)
    with neighbor.at_work():
        return quiet, _turn(contestant, neighbor)


def _turn(contestant: Contestant, neighbor: Neighbor) -> Turn:
    pids = contestant.pid, neighbor.pid
    start, (machine, stolen), known = time.perf_counter(), _machine(), sum(map(_process, pids))
    seconds = contestant.work().seconds
    took, (later, stolen_later) = time.perf_counter() - start, _machine()
    others = later - machine - (sum(map(_process, pids)) - known)
    return Turn(seconds, max(0.0, others / took), (stolen_later - stolen) / took)


def _machine() -> tuple[float, float]:
    """Return the seconds that all processors together have worked, and those that the host took from them."""
    user, nice, system, _, _, interrupts, soft, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + interrupts + soft) / TICKS, steal / TICKS


def _process(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _lines(stages: list[Stage], rounds: int) -> Iterator[str]:
    cores = usable_cores()
    others, stolen = (
        median(getattr(turn, field) for stage in stages for turn in stage.quiet)
        for field in ("others", "stolen")
    )
    yield (
        f"`python -m benchmarks.busy --write`, {processor()}, {cores} cores; medians of {rounds} "
        "rounds. In each, a stage runs alone and then beside a process that keeps a core busy: as ptq runs "
        "it, and with threads that spin while they wait, which is the default of ONNX Runtime and PyTorch."
    )
    yield ""
    if others + stolen > QUIET_CORES:
        yield (
            f"**The machine was not quiet**: other processes took {others:.2f} of its {cores} cores while a "
            f"stage ran alone, and the host took {stolen:.2f}."
        )
    else:
        yield f"Other processes took {others:.2f} cores while a stage ran alone, and the host {stolen:.2f}."
    yield ""
    yield "| stage | threads | alone | beside a busy process | ratio | required |"
    yield "|---|---|---|---|---|---|"
    for stage in stages:
        name = stage.name.removesuffix(SPINNING)
        spinning = stage.name != name
        quiet, busy = (median(turn.seconds for turn in turns) for turns in (stage.quiet, stage.busy))
        yield (
            f"| {STAGES[name][0]} | {'spinning' if spinning else 'default of ptq'} | {quiet:.3f} s "
            f"| {busy:.3f} s | {stage.ratio:.2f} | {'' if spinning else f'at most {LIMIT:.0f}'} |"
        )


if __name__ == "__main__":
    main()
