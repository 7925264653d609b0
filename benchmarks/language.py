"""Language models in each form: perplexity beside float, file size, speed of a prompt and of one token.

python -m benchmarks.language                        print the table of the sample
python -m benchmarks.language --write                also write it to benchmarks/RESULTS.md
python -m benchmarks.language DIR --only a,b --write    language models of a folder as benchmarks.zoo reads
python -m benchmarks.language --form dynamic --form nearest    only forms whose name has one of these

Every form is made from one calibration, and all of them are evaluated in one pass. ``quantize_dynamic`` of
ONNX Runtime, which optimum calls, takes part with int8 weights per channel.
"""

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.each_network import table_line
from benchmarks.results_page import between, networks_parser, print_part, processor
from benchmarks.timing import run_ptq
from benchmarks.zoo import find_networks
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.latency import Scenario, measure_latencies
from ptq_cli.evaluation.metrics.token_metrics import Perplexity
from ptq_cli.runtime.session import Session

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_models" / "shakespeare_language_model"
SAMPLES, SECONDS, PROMPT = 48, 10.0, 128
NEAREST, ROUND = ("--recover", "none"), ("--set", "recovery.rungs=round")
FORMS = {
    "int8, to nearest": NEAREST,
    "int8, `--set recovery.rungs=round`": ROUND,
    "`dynamic_int8`": ("--preset", "dynamic_int8", *NEAREST),
    "`dynamic_int8`, one scale per tensor": (
        *("--preset", "dynamic_int8", "--set", "activations.granularity=tensor"),
        *NEAREST,
    ),
    "`w8_block32`, to nearest": ("--preset", "w8_block32", *NEAREST),
    "`w4_block32`, to nearest": ("--preset", "w4_block32", *NEAREST),
    "`w4_block32`, `--set recovery.rungs=round`": ("--preset", "w4_block32", *ROUND),
    "`w4_block128`, to nearest": ("--preset", "w4_block128", *NEAREST),
    "`w4_block128`, `--set recovery.rungs=round`": ("--preset", "w4_block128", *ROUND),
}
THEIRS = "`quantize_dynamic`"
METRICS = ("perplexity", "next_token_agreement")
COLUMNS = ("form", "perplexity", "of float, 95 % interval", "same token", "file", "prompt", "token")


@dataclass(frozen=True)
class Subject:
    """A float model with the words that tell ``ptq`` its data.

    Attributes:
        name: of its folder.
        model: the float file.
        calibration: flags of ``ptq calibrate``.
        evaluation: flags of ``ptq evaluate``.
        sequences: the tokens of the evaluation data, [sequences, positions].
    """

    name: str
    model: Path
    calibration: Sequence[str]
    evaluation: Sequence[str]
    sequences: Array


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = networks_parser("Quantize language models in each form.", SAMPLES, is_optional=True)
    parser.add_argument("--form", action="append", help="a part of the name of forms to measure; repeatable")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to measure each speed of a model")
    arguments = parser.parse_args()
    subjects = [of_sample()]
    if arguments.folder:
        found = find_networks(arguments.folder, arguments.only)
        subjects = [of_folder(folder, arguments.samples) for folder in found]
    forms = forms_with(arguments.form or [""])
    tables = ("\n".join(table(subject, forms, arguments.seconds)) for subject in subjects)
    part = "language_folder" if arguments.folder else "language"
    print_part(part, between(tables), write=arguments.write)


def forms_with(words: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the forms whose name has one of some words.

    Example:
        >>> list(forms_with(["w4_block128`, to", "dynamic_int8`, one"]))
        ['`dynamic_int8`, one scale per tensor', '`w4_block128`, to nearest']
    """
    return {form: flags for form, flags in FORMS.items() if any(word in form for word in words)}


def of_sample() -> Subject:
    """Return the sample model with its whole texts."""
    from tokenizers import Tokenizer

    file = str(SAMPLE / "tokenizer.json")
    tokenizer = ("--set", f"text.tokenizer={file}")
    text = (SAMPLE / "eval.txt").read_text("ascii")
    ids = Tokenizer.from_file(file).encode(text).ids
    return Subject(
        SAMPLE.name,
        SAMPLE / "model.onnx",
        ("--data", str(SAMPLE / "calib.txt"), *tokenizer),
        ("--eval-data", str(SAMPLE / "eval.txt"), *tokenizer),
        np.resize(ids, (len(ids) // PROMPT, PROMPT)),
    )


def of_folder(folder: Path, samples: int) -> Subject:
    """Return a model of a folder with at most so many samples of its data."""
    limits = ("--samples", str(samples))
    with np.load(folder / "eval.npz") as arrays:
        sequences = arrays["input_ids"][:samples]
    return Subject(
        folder.name,
        folder / "model.onnx",
        ("--data", str(folder / "calib.npz"), *limits),
        ("--eval-data", str(folder / "eval.npz"), *limits),
        sequences,
    )


def table(subject: Subject, forms: Mapping[str, Sequence[str]], seconds: float) -> Iterator[str]:
    """Yield the lines of a model's table: what it is, its header, and a row for each form."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run_ptq(["calibrate", str(subject.model), *subject.calibration, "--run", "run"], folder)
        original = folder / "run" / "model.float.onnx"
        files = dict(quantized(folder, forms))
        reports = evaluated(subject, files, folder)
        first = reports[next(iter(files))]
        of_float = metrics_of(first)["perplexity"]["float_value"]
        known = {form: list(cells(report)) for form, report in reports.items()}
        known[THEIRS], files[THEIRS] = quantize_dynamically(original, subject.sequences, of_float)
        prompts = [subject.sequences[:1], subject.sequences[:1, :1]]
        speeds = [speed_of([original, *files.values()], prompt, seconds) for prompt in prompts]
    yield (
        f"{subject.name}, {processor()}, one thread, onnxruntime {onnxruntime.__version__}; float: "
        f"perplexity {of_float:.3f} on {first['evaluation']['samples']} sequences, "
        f"{first['model']['float_model']['bytes'] / 1e6:.2f} MB."
    )
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for form, *faster in zip(files, *speeds, strict=True):
        yield table_line(form, *known[form], *(f"{ratio:.2f}" for ratio in faster))


def quantized(folder: Path, forms: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Path]]:
    """Yield each form and its file, made from the calibration in ``folder``/run."""
    for index, (form, words) in enumerate(forms.items()):
        file = folder / f"form{index}.onnx"
        run_ptq(["export", "--run", "run", "--reset", *words, "--output", str(file)], folder)
        yield form, file


def quantize_dynamically(original: Path, sequences: Array, of_float: float) -> tuple[list[str], Path]:
    """Run ``quantize_dynamic``, and return the first cells of its row, and its file."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    file = original.with_name("dynamic.onnx")
    logging.disable(logging.WARNING)  # It recommends the preprocessing that ptq has already done.
    quantize_dynamic(str(original), str(file), per_channel=True, weight_type=QuantType.QInt8)
    session, perplexity = Session(file, threads=1), Perplexity()
    for row in range(len(sequences)):
        ids = sequences[row : row + 1]
        perplexity.update(session.run(inputs_of(session, ids))[0][:, :-1], ids[:, 1:])
    value, share = perplexity.compute(), file.stat().st_size / original.stat().st_size
    return [f"{value:.3f}", f"{value / of_float:.4f}", "", f"{share:.1%}"], file


def evaluated(subject: Subject, files: Mapping[str, Path], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the report of each form; all are compared with float in one pass."""
    names = [word for file in files.values() for word in ("--model", str(file))]
    metrics = [word for name in METRICS for word in ("--metric", name)]
    run_ptq(
        [
            "evaluate",
            *names,
            *subject.evaluation,
            *metrics,
            "--run",
            "run",
            "--set",
            "evaluation.latency=false",
        ],
        folder,
    )
    paths = {form: folder / "run" / file.stem / "report.json" for form, file in files.items()}
    return {form: json.loads(path.read_text("utf-8")) for form, path in paths.items()}


def metrics_of(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a report's metrics by name."""
    return {item["name"]: item for item in report["metrics"]}


def cells(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield perplexity, its ratio, the agreement, and the file as a share of float."""
    metrics = metrics_of(report)
    found, interval = metrics["perplexity"], metrics["perplexity"]["ratio_interval"]
    yield f"{found['quantized_value']:.3f}"
    yield f"{found['ratio']:.4f} ({interval['low']:.4f} to {interval['high']:.4f})"
    yield f"{metrics['next_token_agreement']['quantized_value']:.1%}"
    yield f"{1 / report['model']['size_ratio']:.1%}"


def speed_of(files: Sequence[Path], ids: Array, seconds: float) -> list[float]:
    """Return how many times as fast as the first file the others are with these tokens, [1, positions]."""
    batch = inputs_of(Session(files[0], threads=1), ids)
    (latency,) = measure_latencies(files, [Scenario([batch], 1)], seconds=seconds)
    return [1 / ratio.processor for ratio in latency.ratios]


def inputs_of(session: Session, ids: Array) -> dict[str, Array]:
    """Return the inputs of a model for tokens [sequences, positions] without padding."""
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
    known = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": positions}
    return {item.name: known[item.name] for item in session.inputs}


if __name__ == "__main__":
    main()
