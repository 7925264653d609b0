"""The files of a network that are compared: as ptq writes them, with and without what is for speed."""

import time
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.zoo_network import Feed, sqnr_db
from ptq_cli.core.progress import silent
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_export import ExportResult, run_export
from ptq_cli.plan.target.rules import QUICK_GELU
from ptq_cli.plan.target.target_file import TABLES_FOLDER
from ptq_cli.runtime.session import Session
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

RUNTIME = "runtime operators"
# Parts of the table of ``ort-cpu`` that rewrite a model for speed, and what stands there without them.
REWRITES = {
    'name = "ort-cpu"\n': 'name = "without-rewrites"\n',
    '[op.HardSwish]\nkind = "join"\ninteger_form = "clamped_sum"\n': "",
    "\nchannel_multiple = 4\n": "\n",
    "\nchannel_multiple = 16\n": "\n",
    "\njoin_axes = true\n": "\n",
}


class Maker:
    """Makes the files of a network, which is calibrated once."""

    def __init__(self, folder: Path, scratch: Path, samples: int) -> None:
        self.user, self._scratch, self._run = folder / "model.onnx", scratch, RunDirectory(scratch / "run")
        settings: dict[str, object] = {"data": str(folder / "calib.npz"), "samples": samples}
        run_calibrate(Request(settings=settings, model=self.user, folder=scratch), self._run, silent)
        with np.load(folder / "eval.npz") as arrays:
            self._arrays = {name: array[:samples] for name, array in arrays.items()}
        self._expected = self._outputs(self.user)

    @property
    def prepared(self) -> Path:
        """The float model as ptq prepares it."""
        return self._run.float_model

    def export(self, name: str, **settings: object) -> tuple[ExportResult, float]:
        """Write a file, and return the result and how many seconds that took."""
        began = time.perf_counter()
        request = Request(settings=settings, folder=self._scratch)
        result = run_export(request, self._run, self._scratch / f"{name}.onnx", reset=True)
        return result, time.perf_counter() - began

    @cached_property
    def has_runtime_operators(self) -> bool:
        """Whether ``quantization.runtime_operators=true`` changes something."""
        result, _ = self.export(RUNTIME, runtime_operators=True)
        return any(layer.written_as == QUICK_GELU for layer in result.plan.layers)

    def feeds(self, batch: int) -> list[Feed]:
        """Return some batches of the evaluation data."""
        count = min(map(len, self._arrays.values())) // batch
        return [
            {name: array[index * batch : (index + 1) * batch] for name, array in self._arrays.items()}
            for index in range(count)
        ]

    def sqnr(self, file: Path) -> float:
        """Return the SQNR of a file's worst output, in dB."""
        pairs = zip(zip(*self._expected, strict=True), zip(*self._outputs(file), strict=True), strict=True)
        return min(sqnr_db(*pair) for pair in pairs)

    def _outputs(self, file: Path) -> list[list[np.ndarray]]:
        session = Session(file, threads=1)
        return [session.run(feed) for feed in self.feeds(1)]


def without_rewrites() -> str:
    """Return the table of ``ort-cpu`` as it would be without any rewrite for speed."""
    text = (TABLES_FOLDER / "ort-cpu.toml").read_text(encoding="utf-8")
    for part, other in REWRITES.items():
        if part not in text:
            raise ValueError(f"ort-cpu.toml has no part {part!r}")
        text = text.replace(part, other)
    return text
