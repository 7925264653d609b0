"""How ``ptq tune`` ranks layers by their noise, beside a run for each layer alone.

python -m benchmarks.ranking DIR            print the table
python -m benchmarks.ranking DIR --write    also write it to benchmarks/RESULTS.md
python -m benchmarks.ranking DIR --only a,b --write    replace the rows of these networks

``benchmarks/zoo.py`` says what is in DIR. A very deep model, ``deep``, is measured, too.
"""

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.each_network import table_line
from benchmarks.models import write_deep_resnet, write_images
from benchmarks.results_page import networks_parser, print_part
from benchmarks.timing import run_ptq
from benchmarks.zoo import find_networks
from ptq_cli.core.progress import Progress, RunProgress
from ptq_cli.pipeline.evaluation.analysis_subject import OpenedAnalysis, open_analysis
from ptq_cli.pipeline.exporting.decided_once import evaluated_layers, plan_of
from ptq_cli.pipeline.setup.resolve import Request
from ptq_cli.pipeline.setup.run_directory import RunDirectory
from ptq_cli.pipeline.tuning.candidate_models import RANKED_ON
from ptq_cli.pipeline.tuning.layer_noise import FIRST, FIRST_OF_MANY, layer_noise

DEEP = "deep"
BATCH = 8
LOUDEST = 20
COLUMNS = (
    "network",
    "layers",
    "each alone",
    "as `tune` ranks",
    "estimate",
    "Spearman, `tune`",
    "estimate",
    f"the {LOUDEST} loudest, `tune`",
    "estimate",
)


def main() -> None:
    """Parse the arguments, measure, and print or write the table."""
    arguments = networks_parser("Measure how layers are ranked.", RANKED_ON).parse_args()
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
        found.append(made)
    for network in found:
        yield table_line(*row(network, samples, scratch / "runs" / network.name))


def row(network: Path, samples: int, run: Path) -> Iterator[str]:
    """Rank the layers of a network in three ways, and yield the cells.

    The noise of each layer alone on the first samples is the truth here.
    """
    data = ["--data", str(network / "calib.npz"), "--samples", str(samples)]
    run_ptq(["quantize", str(network / "model.onnx"), *data, "--recover", "none", "--run", str(run)], network)
    true, of_each = ranked(RunDirectory(run), FIRST, most_alone=10**9)
    ways = [
        ranked(RunDirectory(run), samples),
        ranked(RunDirectory(run), FIRST_OF_MANY, most_alone=0, loud=0),
    ]
    yield from (network.name, f"{len(true):,}", of_each, *(cost for _, cost in ways))
    yield from (f"{rank_correlation(true, noise):.2f}" for noise, _ in ways)
    yield from (f"{loudest_share(true, noise):.0%}" for noise, _ in ways)


def ranked(run: RunDirectory, samples: int, **options: int) -> tuple[Mapping[str, float], str]:
    """Return the noise of each layer, and in how many runs and how much processor time it was found."""
    opened = open_analysis(Request(settings={"eval_samples": samples}), run, None, lambda _: None)
    told: list[Progress] = []
    begin = time.process_time()
    found = layer_noise(
        opened.twins,
        _integer_layers(opened),
        opened.resolved.target,
        opened.dataset,
        opened.inputs,
        batch_size=BATCH,
        threads=1,
        progress=told.append,
        **options,
    )
    seconds, last = time.process_time() - begin, told[-1]
    runs = last.number if isinstance(last, RunProgress) else 0
    return found, f"{seconds:.1f} s, {runs:,} runs"


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
