"""One contestant in its own process: it gets ready, then works once for each line that it reads.

python -m benchmarks.contestants NAME MODEL DATA [SAMPLES]

It answers each line of input with one line of JSON: wall time, processor time and its peak memory so far.
"""

import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibration.count_batches import Counting
from ptq_cli.calibration.measure import measure
from ptq_cli.calibration.subject import CalibrationSubject, open_subject
from ptq_cli.core.progress import Progress, silent
from ptq_cli.runtime.machine import usable_cores
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap
from ptq_cli.setup.resolve import Request, Resolved, resolve

BATCH = 32


@dataclass(frozen=True)
class Moment:
    """A point in time: by the clock, and in processor seconds of this process."""

    clock: float = field(default_factory=time.perf_counter)
    processors: float = field(default_factory=time.process_time)


Job = Callable[[], Moment]  # A function that works once, and returns the moment when its start-up ended
# A function that gets ready with a model, its data and a number of samples.
Ready = Callable[[Path, str, int | None], Job]


def main(contestants: Mapping[str, Ready] | None = None) -> None:
    """Get ready as the arguments say, and work once for each line of input."""
    name, model, data, *rest = sys.argv[1:]
    begin = time.perf_counter()
    job = (contestants or CONTESTANTS)[name](Path(model), data, int(rest[0]) if rest else None)
    print(json.dumps({"ready": time.perf_counter() - begin}), flush=True)
    for _ in sys.stdin:
        called = Moment()
        start = job()
        end = Moment()
        answer = {
            "startup": start.clock - called.clock,
            "seconds": end.clock - start.clock,
            "processors": end.processors - start.processors,
            "peak": _peak(),
        }
        print(json.dumps(answer), flush=True)


def _peak() -> int:
    # getrusage would include the memory that the parent had when it started this process.
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found.group(1)) * 1024 if found else 0


def _subject(
    model: Path, data: str, samples: int | None, **settings: Any
) -> tuple[CalibrationSubject, Resolved]:
    known = {"data": data, **({"samples": samples} if samples else {}), **settings}
    resolved = resolve(Request(settings=known, model=model, folder=model.parent).by_user())
    return open_subject(resolved, silent), resolved


def _batches(subject: CalibrationSubject, size: int = BATCH) -> Iterator[dict[str, Any]]:
    for batch in bind_inputs(subject.dataset, subject.model.inputs).batches(size):
        yield batch.inputs


def _forward(threads: int | None) -> Ready:
    def ready(model: Path, data: str, samples: int | None) -> Job:
        import onnxruntime

        subject, _ = _subject(model, data, samples)
        options = onnxruntime.SessionOptions()
        if threads is not None:
            options.intra_op_num_threads = threads
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")

        def job() -> Moment:
            # A new one each time, as in a calibration: its first run is slower than the later ones.
            session = onnxruntime.InferenceSession(
                subject.model.stored.content, options, providers=["CPUExecutionProvider"]
            )
            batches = _batches(subject)
            first = next(batches)
            start = Moment()
            for inputs in itertools.chain([first], batches):
                session.run(None, inputs)
            return start

        return job

    return ready


def _ptq(method: str) -> Ready:
    def ready(model: Path, data: str, samples: int | None) -> Job:
        subject, resolved = _subject(model, data, samples, method=method)

        def job() -> Moment:
            started: list[Moment] = []

            def note(progress: Progress) -> None:
                if not progress.done:
                    started.append(Moment())  # The first batch has arrived, and ptq knows how to run it.

            measure(subject, resolved, Counting(progress=note))
            return started[0]

        return job

    return ready


def _onnxruntime(method: str) -> Ready:
    def ready(model: Path, data: str, samples: int | None) -> Job:
        from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod
        from onnxruntime.quantization.calibrate import create_calibrator
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        subject, _ = _subject(model, data, samples)
        scratch = Path(tempfile.mkdtemp(dir=os.environ.get("PTQ_BENCHMARK_SCRATCH")))
        path = scratch / "float.onnx"
        path.write_bytes(subject.model.stored.content)
        # The tensors that quantize_static chooses.
        operators = list({*QDQRegistry, *QLinearOpsRegistry})
        # Its histograms need batches of equal size: use the largest size that divides the samples.
        size = next(size for size in range(BATCH, 0, -1) if not (samples or 1) % size)

        class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
            def __init__(self) -> None:
                self._batches = _batches(subject, size)

            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(self._batches, None)

        def job() -> Moment:
            calibrator = create_calibrator(
                path,
                operators,
                augmented_model_path=str(scratch / "augmented.onnx"),
                calibrate_method=getattr(CalibrationMethod, method),
            )
            start = Moment()
            calibrator.collect_data(Reader())
            calibrator.compute_data()
            return start

        return job

    return ready


def _one_read(model: Path, data: str, samples: int | None) -> Job:
    """Read every measured element once, on all cores: the least that any calibration must do."""
    subject, _ = _subject(model, data, samples)
    fed = {spec.name for spec in subject.model.inputs}
    session = Session(tap(subject.model.model, [name for name in subject.plan.measured if name not in fed]))
    inputs = next(_batches(subject))
    arrays = [array.reshape(-1) for array in session.run(inputs)]
    batches = (samples or BATCH) // BATCH
    # Split, so that one core does not read a large array alone.
    parts = [part for array in arrays for part in np.array_split(array, max(1, array.size >> 18))]

    def job() -> Moment:
        with ThreadPoolExecutor(usable_cores()) as pool:
            start = Moment()
            for _ in range(batches):
                list(pool.map(np.max, parts))
        return start

    return job


CONTESTANTS: dict[str, Ready] = {
    "forward": _forward(None),
    "forward without spinning": _forward(0),
    "ptq max": _ptq("max"),
    "ptq histogram": _ptq("histogram"),
    "one read": _one_read,
    "onnxruntime MinMax": _onnxruntime("MinMax"),
    "onnxruntime Entropy": _onnxruntime("Entropy"),
    "onnxruntime Percentile": _onnxruntime("Percentile"),
}


if __name__ == "__main__":
    main()
