"""Calibration on a GPU beside the forward pass that it rides on, the processor, and hooks of PyTorch.

python -m benchmarks.gpu            print the tables; needs the extra ``cuda`` and a GPU
python -m benchmarks.gpu --write    also write them to benchmarks/RESULTS.md
python -m benchmarks.gpu --device cpu --quick    the same loops on the processor, to try the script

All contestants work on the same batches in one process, in turns; a turn takes all samples. Sessions,
compiled kernels and a first turn are not counted. The hooks are written for this, after the histogram
calibrator of pytorch-quantization and ModelOpt: 2048 bins of ``torch.histc`` for the input of each layer with
a weight.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from benchmarks.models import write_bert, write_images, write_resnet50, write_resnet56, write_sequences
from benchmarks.results_page import print_part, processor, result_parser
from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibration.collect import CollectorGroup, CountedTensors, collect, counting_on, torch_groups
from ptq_cli.calibration.open_forward import open_forward
from ptq_cli.calibration.subject import CalibrationSubject, open_subject
from ptq_cli.collectors.max_collector import no_statistics
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import DeviceError
from ptq_cli.core.progress import silent
from ptq_cli.runtime.cuda import require_device
from ptq_cli.runtime.machine import HOST, Device, Machine, parse_device, usable_cores
from ptq_cli.runtime.session import Session, SessionPlace
from ptq_cli.setup.resolve import Request, resolve

ROUNDS = 5
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
Turn = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network's shape, with random data.

    Attributes:
        write: writes the model and its data.
        wanted: least share of the forward pass with taps, of max and of histogram.
    """

    title: str
    write: Callable[[Path, Path, int], None]
    batch: int
    samples: int
    wanted: tuple[float, float] | None = None
    has_hooks: bool = False


def _resnet50(model: Path, data: Path, samples: int) -> None:
    write_resnet50(model)
    write_images(data, samples)


def _resnet56(model: Path, data: Path, samples: int) -> None:
    write_resnet56(model)
    write_images(data, samples, side=32)


def _bert(model: Path, data: Path, samples: int) -> None:
    write_bert(model)
    write_sequences(data, samples, 64)


CASES = (
    Case(
        title="ResNet-50's shape, 224², batches of 32",
        write=_resnet50,
        batch=32,
        samples=512,
        wanted=(0.85, 0.7),
        has_hooks=True,
    ),
    Case(
        title="BERT's shape, 6 layers, 64 words, batches of 32",
        write=_bert,
        batch=32,
        samples=2048,
        wanted=(0.85, 0.7),
    ),
    Case(title="ResNet-56's shape, 32², batches of 32", write=_resnet56, batch=32, samples=2048),
    Case(title="ResNet-56's shape, 32², batches of 512", write=_resnet56, batch=512, samples=8192),
)


class Uncounted:
    """Collectors that look at nothing: what is left is the forward pass with taps."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def feed(self, arrays: object, shared: object) -> list[str]:
        """Look at nothing."""
        del arrays, shared
        return []

    def statistics(self) -> dict[str, TensorStatistics]:
        """Return those of no values, for each tensor."""
        return {name: no_statistics() for name in self.names}


def _uncounted(names: Sequence[str], method: str, allow_nonfinite: bool) -> Sequence[CollectorGroup]:
    del method, allow_nonfinite
    return [Uncounted(names)]


class Subject:
    """A network with its batches in memory, and ways to run and count them."""

    def __init__(self, case: Case, folder: Path, samples: int) -> None:
        model, data = folder / "model.onnx", folder / "data.npz"
        case.write(model, data, samples)
        settings = {"data": str(data), "data.batch_size": case.batch}
        resolved = resolve(Request(settings=settings, model=model, folder=folder).by_user())
        self._subject: CalibrationSubject = open_subject(resolved, silent)
        self._batch_size = case.batch
        with closing(self._bound().batches(case.batch)) as batches:
            self.batches: list[Batch] = list(batches)
        fed = {spec.name for spec in self._subject.model.inputs}
        self.taps = [name for name in self._subject.measured if name not in fed]

    def forward(self, device: Device) -> Turn:
        """Return a turn of the model as it is, whose outputs stay where they are computed."""
        place = SessionPlace(device)
        session = Session(self._subject.model.stored, threads=usable_cores(), place=place)
        run = session.run if device.is_host else session.run_on_device
        return lambda: [run(batch.inputs) for batch in self.batches]

    def counted(self, device: Device, method: str, groups: Callable[..., Sequence[CollectorGroup]]) -> Turn:
        """Return a turn of the tapped model whose tensors are counted."""
        threads = usable_cores()
        machine = Machine(device=device, threads=threads, memory=None)
        how = open_forward(self._subject.model, self.taps, machine, self._bound(), self._batch_size, silent)
        tensors = CountedTensors(inputs=[], taps=self.taps, method=method, make_tapped=groups)
        return lambda: collect(how, self.batches, tensors, threads if device.is_host else min(threads, 2))

    def hooked(self, device: Device) -> Turn:
        """Return a turn of ResNet-50 in PyTorch, with a histogram of each layer's input."""
        place = torch.device("cpu" if device.is_host else str(device))
        network, histograms = ResNet50().eval().to(place), []
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                histograms.append(HookedHistogram())
                layer.register_forward_pre_hook(histograms[-1])

        def turn() -> None:
            with torch.no_grad():
                for batch in self.batches:
                    network(torch.from_numpy(batch.inputs["image"]).to(place))
            for histogram in histograms:
                histogram.read()

        return turn

    def _bound(self) -> Dataset:
        return bind_inputs(self._subject.dataset, self._subject.model.inputs)


class ResNet50(nn.Module):
    """The shape of ``benchmarks.models.write_resnet50`` as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, channels = [], 64
        for width, count, stride in STAGES:
            for index in range(count):
                blocks.append(Bottleneck(channels, width, stride if index == 0 else 1))
                channels = 4 * width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(channels, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        found: torch.Tensor = self.head(self.blocks(self.stem(image)).mean((2, 3)))
        return found


class Bottleneck(nn.Module):
    """Three convolutions, beside a fourth where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, width, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1),
        )
        same = channels == 4 * width and stride == 1
        self.beside = nn.Identity() if same else nn.Conv2d(channels, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return torch.relu(self.inner(x) + self.beside(x))


class HookedHistogram:
    """A histogram of magnitudes, which grows by bins of the first batch's width."""

    def __init__(self, bins: int = 2048) -> None:
        self._bins, self._width = bins, 0.0
        self._counts: torch.Tensor | None = None

    def __call__(self, _layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        """Add the values of a layer's input."""
        values = inputs[0].abs().float()
        largest = float(values.max())
        if self._counts is None:
            self._width = largest / self._bins or 1.0
            self._counts = torch.histc(values, self._bins, 0, largest)
            return
        bins = max(len(self._counts), ceil(largest / self._width))
        counts = torch.histc(values, bins, 0, bins * self._width)
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def read(self) -> None:
        """Bring the counts to the host."""
        if self._counts is not None:
            self._counts.cpu()


def _turns(case: Case, subject: Subject, device: Device) -> Mapping[str, Turn]:
    turns = {
        "forward": subject.forward(device),
        "with taps": subject.counted(device, "max", _uncounted),
        "max": subject.counted(device, "max", counting_on(device)),
        "histogram": subject.counted(device, "histogram", counting_on(device)),
    }
    if not device.is_host:
        turns["histogram by PyTorch, without the extra"] = subject.counted(device, "histogram", torch_groups)
        turns[f"histogram, {usable_cores()} cores"] = subject.counted(HOST, "histogram", counting_on(HOST))
    if case.has_hooks:
        turns["hooks of PyTorch, 54 tensors"] = subject.hooked(device)
    return turns


def _table(case: Case, device: Device, rounds: int, samples: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(case, Path(folder), samples)
        turns = _turns(case, subject, device)
        for turn in turns.values():
            turn()
        seconds: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(rounds):
            for name, turn in turns.items():
                start = time.perf_counter()
                turn()
                seconds[name].append(time.perf_counter() - start)
    yield f"**{case.title}**, {len(subject.taps)} tensors"
    yield ""
    yield "| | samples/s | of the forward pass with taps | wanted |"
    yield "|---|---|---|---|"
    wanted = dict(zip(("max", "histogram"), case.wanted or (), strict=False))
    for name, times in seconds.items():
        ratio = median(np.array(seconds["with taps"]) / np.array(times))
        asked = f"≥ {wanted[name]:.2f}" if name in wanted else ""
        yield f"| {name} | {samples / median(times):.0f} | {ratio:.2f} | {asked} |"
    yield ""


def _tables(device: Device, rounds: int, share: float) -> Iterator[str]:
    where = processor() if device.is_host else torch.cuda.get_device_name(device.number)
    yield f"On {where}, {usable_cores()} cores, torch {torch.__version__}."
    yield ""
    for case in CASES:
        yield from _table(case, device, rounds, max(case.batch, int(case.samples * share)))


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser: argparse.ArgumentParser = result_parser(__doc__ or "")
    parser.add_argument("--device", type=parse_device, default=Device("cuda"), help="cuda, cuda:1, or cpu")
    parser.add_argument("--quick", action="store_true", help="one round of few samples")
    arguments = parser.parse_args(words)
    try:
        require_device(arguments.device)
    except DeviceError as error:
        parser.error(f"{error.message}; {error.hint}")
    rounds, share = (1, 0.0) if arguments.quick else (ROUNDS, 1.0)
    print_part("gpu", _tables(arguments.device, rounds, share), write=arguments.write)


if __name__ == "__main__":
    main()
