"""How ``ptq tune`` ranks layers by their noise, beside a run for each layer alone, and when it first answers.

python -m benchmarks.ranking DIR            print the table
python -m benchmarks.ranking DIR --write    also write it to benchmarks/RESULTS.md
python -m benchmarks.ranking DIR --only a,b --write    replace the rows of these networks

``benchmarks/zoo.py`` says what is in DIR. A model of 1,208 layers, ``deep``, is measured, too.
"""

import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.each_network import table_line
from benchmarks.models import write_deep_resnet, write_images
from benchmarks.results_page import networks_parser, print_part
from benchmarks.zoo import find_networks
from ptq_cli.analysis.analysis_subject import OpenedAnalysis, open_analysis
from ptq_cli.core.progress import Progress, RunProgress
from ptq_cli.pipeline.exported_file import evaluated_layers, plan_of
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.tuning.candidate import DEFAULT
from ptq_cli.tuning.layer_noise import Combine, layer_noise, typical
from ptq_cli.tuning.run_tune import run_tune

DEEP = "deep"
# Samples that each layer alone is run on, and at most so many runs of the model for that.
SAMPLES, RUNS = 8, 1024
FEW = 128  # Layers that are also run alone on the same samples for the mean
LOUDEST = 20
ALL = 2**40  # Runs until twice as many samples were seen: of every layer on every sample
UNREACHABLE = 99.0  # SQNR in dB, so that layers are ranked for more than the default
COLUMNS = (
    "network",
    "layers",
    "`tune`: first answer",
    "ranking",
    "each alone",
    "Spearman, `tune`",
    "each alone",
    f"the {LOUDEST} loudest, `tune`",
    "each alone",
    "Spearman of means",
)


def main() -> None:
    """Parse the arguments, measure, and print or write the table."""
    arguments = networks_parser("Measure how layers are ranked.", 48).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        lines = page(arguments.folder, arguments.only, arguments.samples, Path(scratch))
        print_part("ranking", lines, write=arguments.write, keep_rows=True)


def page(folder: Path, only: Sequence[str] | None, samples: int, scratch: Path) -> Iterator[str]:
    """Measure the networks, and yield the lines of the table."""
    yield table_line(*COLUMNS)
    yield f"|{'---|' * len(COLUMNS)}"
    others = [name for name in only if name != DEEP] if only is not None else None
    found = list(find_networks(folder, others)) if others is None or others else []
    if only is None or DEEP in only:
        made = scratch / DEEP
        made.mkdir()
        write_deep_resnet(made / "model.onnx")
        write_images(made / "calib.npz", samples, side=32)
        write_images(made / "eval.npz", SAMPLES, side=32, seed=9)
        found.append(made)
    for network in found:
        yield table_line(*row(network, samples, scratch / "runs" / network.name))


def row(network: Path, samples: int, folder: Path) -> Iterator[str]:
    """Rank the layers of a network by ``tune``, and by running each alone, and yield the cells.

    The noise of each layer alone on other samples is the truth here.
    """
    tuned, run = _Tuned(), RunDirectory(folder)
    asked = {"data": str(network / "calib.npz"), "samples": samples, "recover": ["none"], "threads": 1}
    asked |= {"budget": {"sqnr_db": UNREACHABLE}}
    run_tune(Request(settings=asked, model=network / "model.onnx", folder=network), run, progress=tuned)
    (ranking,) = json.loads(run.tuning_checkpoint.read_text("utf-8"))["rankings"].values()
    few = max(1, min(SAMPLES, RUNS // len(ranking["noise"])))
    same = {"eval_samples": few}
    others = {"eval_data": str(network / "eval.npz"), **same}
    (alone, cost), (true, _) = each_alone(run, same), each_alone(run, others)
    yield from (network.name, f"{len(true):,}", f"{tuned.answered:.0f} s", tuned.cost, cost)
    yield from (f"{rank_correlation(true, noise):.2f}" for noise in (ranking["noise"], alone))
    yield from (f"{loudest_share(true, noise):.0%}" for noise in (ranking["noise"], alone))
    if len(true) > FEW:
        yield ""
        return
    (mean, _), (true_mean, _) = each_alone(run, same, fmean), each_alone(run, others, fmean)
    yield f"{rank_correlation(true_mean, mean):.2f}"


@dataclass
class _Tuned:
    """Follows a tuning, and interrupts it once its layers are ranked.

    Attributes:
        answered: processor time until the first candidate was measured and written, in seconds.
        cost: of the ranking.
    """

    answered: float = 0.0
    cost: str = ""
    _begun: float = field(default_factory=time.process_time)
    _last: RunProgress | None = None

    def __call__(self, progress: Progress) -> None:
        now = time.process_time()
        if progress.note.startswith(DEFAULT):
            self.answered, self._begun = now - self._begun, now
        if isinstance(progress, RunProgress):
            self._last = progress
            self.cost = _cost(now - self._begun, progress)
        elif self._last is not None:
            raise KeyboardInterrupt


def _cost(seconds: float, last: RunProgress) -> str:
    return f"{seconds:.0f} s, {last.number:,} runs"


def each_alone(
    run: RunDirectory, data: Mapping[str, Any], combine: Combine = typical
) -> tuple[Mapping[str, float], str]:
    """Return the noise of each layer, run alone on all samples, and what that took."""
    opened = open_analysis(Request(settings=data), run, None, lambda _: None)
    told: list[Progress] = []
    begin = time.process_time()
    found = layer_noise(
        opened.twins,
        _integer_layers(opened),
        opened.resolved.target,
        opened.dataset,
        opened.inputs,
        threads=1,
        progress=told.append,
        runs=ALL,
        quiet=0.0,
        combine=combine,
    )
    (last,) = [step for step in told[-1:] if isinstance(step, RunProgress)]
    return found, _cost(time.process_time() - begin, last)


def _integer_layers(opened: OpenedAnalysis) -> set[str]:
    plan = plan_of(opened.pair.float_model, opened.resolved.target)
    layers = evaluated_layers(plan, opened.origin, opened.pair.quantized_name)
    return {layer.name for layer in layers if layer.integer}


def rank_correlation(true: Mapping[str, float], noise: Mapping[str, float]) -> float:
    """Return Spearman's coefficient of two rankings.

    Example:
        >>> rank_correlation({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 5.0, "b": 6.0, "c": 9.0})
        1.0
    """
    first, second = (np.argsort(np.argsort([found[name] for name in true])) for found in (true, noise))
    return float(np.corrcoef(first, second)[0, 1])


def loudest_share(true: Mapping[str, float], noise: Mapping[str, float]) -> float:
    """Return how much noise the layers make that are ranked as the loudest, over those that are."""

    def made(by: Mapping[str, float]) -> float:
        return math.fsum(true[name] for name in sorted(true, key=by.__getitem__, reverse=True)[:LOUDEST])

    return made(noise) / made(true)


if __name__ == "__main__":
    main()
