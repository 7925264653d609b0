"""Cost of the metrics in addition to the models: ptq's evaluation over two plain passes of ONNX Runtime.

python -m benchmarks.evaluation            print the table
python -m benchmarks.evaluation --write    also write it to benchmarks/RESULTS.md
"""

import os
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.main_job import CNN, SAMPLES
from benchmarks.results_page import print_part, processor, result_parser
from benchmarks.timing import Work, median_ratio, run_ptq, seconds
from ptq_cli.calibdata.dataset.batches import EVERY_BATCH, Batch, Selection, Shard
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.evaluation.evaluation_set import EvaluationSet, SetSummary, fit_evaluation
from ptq_cli.pipeline.evaluation.measure_models import evaluate_pass, evaluate_shard
from ptq_cli.pipeline.evaluation.opened_pass import evaluations_of, evaluator_maker
from ptq_cli.pipeline.evaluation.quantized_models import EvaluatedModels
from ptq_cli.pipeline.evaluation.shards import NamedShard, joined_shards, parse_shard_bytes, shard_bytes
from ptq_cli.runtime.machine import usable_cores
from ptq_cli.runtime.session import Session
from ptq_cli.setup.parts import Part
from ptq_cli.setup.parts import Work as PartWork
from ptq_cli.setup.resolve import Request, Resolved, open_data, reading_of, resolve
from ptq_cli.setup.resumable import discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory

ROUNDS = 5
PARTS = 2
TRANSFORMER = SAMPLES / "spoken_digits_transformer"
MANY = ("top1", "top5", "f1", "class_accuracy", "auroc", "torchmetrics.classification:MulticlassF1Score")


class InMemory(Dataset):
    """The batches of another data set, decoded in advance, so that only models and metrics are timed."""

    def __init__(self, dataset: Dataset, batch_size: int) -> None:
        for name in ("source", "count", "specs", "has_labels", "class_names"):
            setattr(self, name, getattr(dataset, name))
        self._inner = dataset
        self._batches = list(dataset.batches(batch_size))

    def digest(self) -> str:
        """The same as in the other data set."""
        return self._inner.digest()

    def _stream(self, batch_size: int, selection: Selection = EVERY_BATCH) -> Generator[Batch]:
        del batch_size
        yield from (batch for number, batch in enumerate(self._batches) if number in selection)


@dataclass
class Job:
    """Two models and the data that they are evaluated on.

    Attributes:
        resolved, models, evaluation_set, run: of the evaluation.
        kilobytes: size of the files of its shards, once it was done in parts.
    """

    resolved: Resolved
    models: EvaluatedModels
    evaluation_set: EvaluationSet
    run: RunDirectory
    kilobytes: float = 0.0

    def plain(self) -> None:
        """Run both models over the data."""
        pair = (self.models.float_model, *self.models.quantized.values())
        sessions = [Session(model, threads=self.resolved.machine.threads) for model in pair]
        for batch in self.evaluation_set.dataset.batches(self.evaluation_set.batch_size):
            for session in sessions:
                session.run(batch.inputs)

    def measured(self) -> None:
        """Run both models over the data, compute the metrics, and resample for the intervals."""
        evaluate_pass(self._of(Part()), self.models, self.evaluation_set)
        discard_checkpoint(self.run.evaluation_checkpoint)

    def in_parts(self) -> None:
        """Do the same in two shards, one after the other, and join what their files would hold."""
        parts = [
            evaluate_shard(self._of(Part(Shard(number, PARTS))), self.models, self.evaluation_set, ())
            for number in range(1, PARTS + 1)
        ]
        contents = [shard_bytes(part) for part in parts]
        shards = [NamedShard("part", parse_shard_bytes(content, "part")) for content in contents]
        found = SetSummary.of(self.evaluation_set)
        make = evaluator_maker(self.models, found, ())
        evaluations_of(joined_shards(shards, make), found.outputs, parts[0].facts.axes)
        self.kilobytes = sum(map(len, contents)) / 1000

    def _of(self, part: Part) -> PartWork:
        return PartWork(resolved=self.resolved, run=self.run, part=part)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Measure the cost of an evaluation.")
    parser.add_argument("--parts", action="store_true", help="measure evaluations in shards alone")
    arguments = parser.parse_args()
    _tell_parts(write=arguments.write)
    if not arguments.parts:
        _tell_costs(write=arguments.write)


def _tell_parts(*, write: bool) -> None:
    load = os.getloadavg()[0]
    rows = list(_part_rows())
    lines = [
        f"`python -m benchmarks.evaluation --parts --write`, {processor()}, {usable_cores()} cores, "
        f"load {load:.1f} at the start; medians of {ROUNDS} rounds in which both take turns. "
        f"{PARTS} shards, one after the other in one process, with their files and the merge, over "
        "the evaluation of the whole; each shard opens the models again.",
        "",
        "| data | metrics | whole | shards and merge | processor time over whole | files |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    print_part("evaluation_parts", lines, write=write)


def _part_rows() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "cnn"
        run_ptq(["quantize", "--run", str(run)], CNN)
        for metrics in (("top1", "top5"), MANY):
            job = _job(CNN, RunDirectory(run), metrics, decoded=True)
            walls, processors = _turns([job.measured, job.in_parts])
            whole, parts = (f"{median(times):.2f} s" for times in walls)
            ratio = f"{median_ratio(processors[1], processors[0]):.2f}"
            count = job.evaluation_set.dataset.count
            name = f"CNN sample, images decoded in advance, {count:,} samples"
            yield f"| {name} | {_shown(metrics)} | {whole} | {parts} | {ratio} | {job.kilobytes:.0f} kB |"


def _tell_costs(*, write: bool) -> None:
    load = os.getloadavg()[0]
    rows = list(_rows())
    lines = [
        f"`python -m benchmarks.evaluation --write`, {processor()}, {usable_cores()} cores, load "
        f"{load:.1f} at the start; medians of {ROUNDS} rounds in which both take turns. Plain is one pass of "
        "the float and of the int8 model in ONNX Runtime over the same batches, which ignores the outputs; "
        "ptq's time includes the intervals. The ratio of processor times shows the cost, independent of what "
        "else the machine does.",
        "",
        "| data | metrics | plain | ptq | wall time over plain | processor time over plain | required |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]
    print_part("evaluation", lines, write=write)


def _rows() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as scratch:
        cnn, digits = Path(scratch) / "cnn", Path(scratch) / "digits"
        run_ptq(["quantize", "--run", str(cnn)], CNN)
        run_ptq(["quantize", "--run", str(digits)], TRANSFORMER)
        asked = "at most 1.15"
        for name, folder, run, metrics, decoded, wanted in (
            ("CNN sample, images decoded in advance", CNN, cnn, ("top1", "top5"), True, asked),
            ("CNN sample, image folder", CNN, cnn, ("top1", "top5"), False, asked),
            ("transformer sample, arrays", TRANSFORMER, digits, ("top1",), True, asked),
            ("CNN sample, images decoded in advance", CNN, cnn, MANY, True, ""),
        ):
            job = _job(folder, RunDirectory(run), metrics, decoded=decoded)
            walls, processors = _turns([job.plain, job.measured])
            count = job.evaluation_set.dataset.count
            plain, measured = (f"{median(times):.2f} s" for times in walls)
            ratios = (f"{median_ratio(times[1], times[0]):.2f}" for times in (walls, processors))
            cells = (f"{name}, {count:,} samples", _shown(metrics), plain, measured, *ratios, wanted)
            yield f"| {' | '.join(cells)} |"


def _turns(works: Sequence[Work]) -> tuple[list[list[float]], list[list[float]]]:
    """Return wall and processor seconds of each piece of work in each round, after a warm-up of each."""
    for work in works:
        work()
    walls: list[list[float]] = [[] for _ in works]
    processors: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for index, work in enumerate(works):
            before = time.process_time()
            walls[index].append(seconds(work))
            processors[index].append(time.process_time() - before)
    return walls, processors


def _job(folder: Path, run: RunDirectory, metrics: Sequence[str], *, decoded: bool) -> Job:
    resolved = resolve(Request(settings={"metric": list(metrics)}, folder=folder).by_user())
    recipe = resolved.recipe
    dataset = open_data(recipe.evaluation, reading_of(recipe), "evaluation", "--eval-data")
    float_model: StoredModel = read_model(run.float_model)
    found = fit_evaluation(dataset, recipe, float_model.load())
    if decoded:
        found = replace(found, dataset=InMemory(found.dataset, found.batch_size))
    quantized = {"int8": read_model(run.quantized_model)}
    return Job(resolved, EvaluatedModels(float_model=float_model, quantized=quantized), found, run)


def _shown(metrics: Sequence[str]) -> str:
    return ", ".join(name.rpartition(":")[2] for name in metrics) + ", and the metrics without labels"


if __name__ == "__main__":
    main()
