"""What a run of recovery knows: the model, its data, the machine, and whether Ctrl-C ended it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.process import interrupts_as_requests
from ptq_cli.core.progress import Progress, ProgressCallback, RunProgress
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.plan.target.rules import Target
from ptq_cli.recover.output_noise import Judge
from ptq_cli.recover.range_effects import Trials
from ptq_cli.recover.recovery_data import RecoveryData
from ptq_cli.runtime.machine import Machine

STAGE = "recover"


class Interruptions:
    """Whether Ctrl-C ended the recovery with what it had found; without ``asked``, Ctrl-C is an error."""

    def __init__(self, progress: ProgressCallback, *, asked: bool) -> None:
        self._asked, self._progress = asked, progress
        self.stopped = False

    @contextmanager
    def rung(self, then: str = "") -> Iterator[Callable[[], bool]]:
        """Yield what tells whether a rung has to end, and tell it at the end, with what happens then."""
        if not self._asked:
            yield lambda: False
            return
        with interrupts_as_requests() as stop:
            yield stop
            self.stopped = stop()
        if self.stopped:
            note = f"Ctrl-C ended the recovery; what was found until then is kept if it helps{then}"
            self._progress(Progress(STAGE, 0, None, note))


@dataclass(frozen=True, kw_only=True)
class RecoveryContext:
    """What a run of recovery knows of the model, its data and the machine.

    Attributes:
        float_model: that is quantized.
        data: to learn from, and to judge by.
        folder: where tensors wait that do not fit into memory.
        checkpoint: the file that an interrupted recovery continues from; None for none.
        every: seconds between two checkpoints.
    """

    float_model: StoredModel
    calibration: Calibration
    data: RecoveryData
    target: Target
    machine: Machine
    folder: Path
    progress: ProgressCallback
    interruptions: Interruptions
    checkpoint: Path | None = None
    every: float = 0.0

    def tell(self, note: str) -> None:
        """Say something of the recovery."""
        self.progress(Progress(STAGE, 0, None, note))

    def judge(self) -> Judge:
        """What tells the SQNR of a quantized model's outputs on the samples that judge, in dB."""
        return self.data.judge(self.float_model, self.machine.threads)

    def trials(self, stage: str, stop: Callable[[], bool]) -> Trials:
        """How the float model is run with tensors on grids; ``stage`` is what progress calls it."""

        def done(count: int, total: int) -> None:
            self.progress(RunProgress(stage, count, total, number=count, runs=total))

        return Trials(threads=self.machine.threads, stop=stop, done=done)
