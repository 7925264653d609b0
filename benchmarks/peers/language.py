"""A language model with weights of 4 bits in blocks, by NNCF, by auto-round and by ptq."""

import argparse
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.each_network import table_line
from benchmarks.language import PROMPT, SAMPLE, inputs_of
from benchmarks.peers.spent import Spent, Way, kept_rows, measured, ptq_way, version_in
from benchmarks.results_page import processor
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.bootstrap import Float64Array, bootstrap_intervals
from ptq_cli.evaluation.metrics.token_metrics import Perplexity
from ptq_cli.runtime.session import Kernels, Session

HERE = Path(__file__).parent
OURS = ("--preset", "w4_block32", "--set", "weights.symmetric=false", "--set", "recovery.rungs=round")
METHODS = {"awq": "AWQ and scale estimation", "gptq": "GPTQ"}  # Of NNCF
COLUMNS = (
    "way", "processor time", "memory", "file", "perplexity", "of float, 95 % interval", "as it runs",
)  # fmt: skip
Feed = dict[str, Array]
Scores = Callable[[Feed], Array]  # From inputs with tokens [1, positions] to scores [1, positions, tokens]


def write_sample(folder: Path) -> Path:
    """Write the sample model and its texts as a folder of a network, and return that."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    for part in ("calib", "eval"):
        ids = tokenizer.encode((SAMPLE / f"{part}.txt").read_text("ascii")).ids
        tokens = np.resize(np.array(ids, np.int64), (len(ids) // PROMPT, PROMPT))
        arrays: dict[str, Any] = {**inputs_of(Session(SAMPLE / "model.onnx"), tokens)}
        np.savez(folder / f"{part}.npz", **arrays)
    onnx.save(onnx.load(SAMPLE / "model.onnx"), folder / "model.onnx")  # with its weights inside
    return folder


def language_report(folder: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Quantize the language model in each way, and yield the lines of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = "--network FOLDER " if arguments.network else ""
    arguments.network = arguments.network or write_sample(folder)
    judge = Judge(folder, arguments)
    versions = [
        f"{package} {version_in(python, package)}"
        for package, python in (("nncf", arguments.nncf), ("auto-round", arguments.auto_round))
        if python
    ]
    yield (
        f"`python -m benchmarks.peers DIR --nncf PYTHON {asked}--samples {arguments.samples} --judged "
        f"{arguments.judged} --methods {arguments.methods} --write`, "
        f"{folder.name}, {arguments.samples} sequences to calibrate with and {judge.count} others to "
        f"evaluate, {processor()}, {', '.join(versions)}; float: perplexity "
        f"{judge.of_float('onnxruntime'):.2f}."
    )
    yield from ("", table_line(*COLUMNS), f"|{'---|' * len(COLUMNS)}")
    for way in ways_of(folder, arguments):
        yield table_line(*judge.cells(way, measured(way)))


def ways_of(folder: Path, arguments: argparse.Namespace) -> Iterator[Way]:
    """Yield the ways of quantizing: those of the peers that are there, and ptq's."""
    files = [arguments.network / name for name in ("model.onnx", "calib.npz")]
    samples = str(arguments.samples)
    for method in arguments.methods.split(",") if arguments.nncf else ():
        output = folder / f"nncf_{method}.xml"
        words = [HERE / "by_nncf.py", *files, output, "--samples", samples, "--method", method]
        yield Way(f"NNCF, {METHODS[method]}", output, [arguments.nncf, *words])
    if arguments.auto_round:
        output = folder / "auto_round.pt"
        words = [HERE / "by_auto_round.py", arguments.transformers, files[1], output, "--samples", samples]
        title = f"auto-round, {arguments.rounds} rounds a block, embedding and last layer in float"
        yield Way(title, output, [arguments.auto_round, *words, "--steps", str(arguments.rounds)])
    model, data = files
    yield ptq_way(folder, "round", [model, "--data", data, "--samples", samples], OURS)


class Judge:
    """Measures the likelihood of the evaluation sequences, in the float model and in files."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder, self._python = folder, arguments.auto_round or Path()
        self._network, self._model = arguments.transformers or Path(), arguments.network / "model.onnx"
        self._data = arguments.network / "eval.npz"
        with np.load(self._data) as arrays:
            whole = {name: array[: arguments.judged] for name, array in arrays.items()}
        self.count = len(whole["input_ids"])
        self._feeds = [
            {name: array[row : row + 1] for name, array in whole.items()} for row in range(self.count)
        ]

    def of_float(self, runtime: str) -> float:
        """Return the perplexity of the float model."""
        return perplexity(self._rows(self._network if runtime == "torch" else self._model, runtime))

    def _rows(self, file: Path, runtime: str, *, is_rounded: bool = False) -> Float64Array:
        """Return of each sequence the sum of its negative log-likelihoods and the number of its tokens."""
        kept = self._folder / f"{file.stem}.{runtime}{'.rounded' * is_rounded}.npy"
        if runtime == "torch":
            script = [self._python, HERE / "judge_torch.py", self._network, self._data, kept]
            words = [*map(str, script), "--samples", str(self.count)]
            words += ["--weights", str(file)] if file != self._network else []
            if not kept.exists():
                subprocess.run(words, check=True)
            found: Float64Array = np.load(kept)
            return found
        opened = in_openvino if runtime == "openvino" else in_onnxruntime
        return kept_rows(kept, lambda: rows_of(opened(file, is_rounded=is_rounded), self._feeds))

    def cells(self, way: Way, spent: Spent) -> Iterator[str]:
        """Yield the cells of a way's row."""
        runtime = {".xml": "openvino", ".onnx": "onnxruntime"}.get(way.output.suffix, "torch")
        before = self._rows(self._network if runtime == "torch" else self._model, runtime)
        after = self._rows(way.output, runtime)
        yield from (way.title, f"{spent.seconds:.0f} s", f"{spent.peak / 1e9:.1f} GB", size_of(way.output))
        yield from (f"{perplexity(after):.2f}", ratio_of(before, after))
        yield "" if runtime == "torch" else ratio_of(before, self._rows(way.output, runtime, is_rounded=True))


def rows_of(scores: Scores, feeds: Sequence[Feed]) -> Float64Array:
    """Return the rows of ``Perplexity`` for sequences, each of which is fed alone."""
    found = Perplexity()
    for feed in feeds:
        found.update(scores(feed)[:, :-1], feed["input_ids"][:, 1:])
    return found.counted_rows()


def in_onnxruntime(file: Path, *, is_rounded: bool) -> Scores:
    """Return what runs a file in ONNX Runtime; rounded, it reads what it multiplies in 8 bits by block."""
    session = Session(file, threads=1, kernels=Kernels(None if is_rounded else 0))
    return lambda feed: np.asarray(session.run(feed)[0])


def in_openvino(file: Path, *, is_rounded: bool) -> Scores:
    """Return what runs a file in OpenVINO in float32; rounded as for ONNX Runtime."""
    import openvino

    settings: dict[str, object] = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    if not is_rounded:
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    return lambda feed: np.asarray(compiled(feed)[0])


def perplexity(rows: Float64Array) -> float:
    """Return the perplexity of all rows together."""
    return float(Perplexity().of_sums(rows.sum(axis=0)))


def ratio_of(before: Float64Array, after: Float64Array) -> str:
    """Return the ratio of two perplexities, with the interval of paired sequences.

    Example:
        >>> rows = np.array([[3.0, 2.0], [2.0, 2.0]])
        >>> ratio_of(rows, rows)
        '1.000 (1.000 to 1.000)'
    """
    both, of_sums = np.concatenate([before, after], axis=1), Perplexity().of_sums
    (interval,) = bootstrap_intervals(both, lambda sums: (of_sums(sums[..., 2:]) / of_sums(sums[..., :2]),))
    value = f"{perplexity(after) / perplexity(before):.3f}"
    return f"{value} ({interval.low:.3f} to {interval.high:.3f})" if interval else value


def size_of(output: Path) -> str:
    """Return the size of a file with what lies beside it; PyTorch's holds floats, and says nothing."""
    if output.suffix == ".pt":
        return ""
    beside = [output.with_suffix(".bin")] if output.suffix == ".xml" else []
    return f"{sum(file.stat().st_size for file in (output, *beside)) / 1e6:.1f} MB"
