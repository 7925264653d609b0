"""A model card for the hub: its YAML and its text, from what was measured, and its place in the user's file.

What is not known is left out. Both parts are marked, so that a later card replaces them and nothing else.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ptq_cli.core.errors import OutputFileError
from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.report.text.markdown import MAX_PARAGRAPH, escape, markdown_table
from ptq_cli.report.text.numbers import Table, share_of_float
from ptq_cli.report.text.speed import speed_lines
from ptq_cli.report.text.summary import comparison_table, label_table, no_interval_lines, placement_line

# What the hub calls a metric, where that is not ptq's own name.
_METRICS = {"top1": "accuracy", "mean_iou": "mean_iou", "auroc": "roc_auc", "spearman": "spearmanr"}
# Tasks by the ending of an architecture's name in config.json, as transformers names its classes.
_TASKS = {
    "ForImageClassification": "image-classification",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "ForSemanticSegmentation": "image-segmentation",
    "ForObjectDetection": "object-detection",
}
_UNKNOWN_TASK = "other"  # The hub wants a task beside each result.
_BARE = re.compile(r"[A-Za-z][\w./-]*")  # Words that YAML reads as texts without quotes,
_VALUES = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")  # unless they are values.
_KEY = re.compile(r"^([\w-]+):", re.MULTILINE)
# What the files themselves say of how they were made.
_TOLD = {
    "SHA-256 of the float model": MetadataKey.FLOAT_SHA256,
    "SHA-256 of the statistics": MetadataKey.STATISTICS_SHA256,
    "target": MetadataKey.TARGET,
}
_OF_YAML, _OF_TEXT = ("# ptq:begin", "# ptq:end"), ("<!-- ptq:begin -->", "<!-- ptq:end -->")


@dataclass(frozen=True, kw_only=True)
class CardModel:
    """One quantized file of a card.

    Attributes:
        file: its path from the card's folder.
        metadata: what its file says of itself.
        report: of its evaluation; None if it was not evaluated as it is now.
        recipe: what made it, without the places of files; empty if it is not at hand.
        dtype: the dtype with which Transformers.js loads it; None where it does not look for such a file.
    """

    file: PurePath
    bytes: int
    sha256: str
    metadata: Mapping[str, str]
    report: Report | None
    recipe: str
    dtype: str | None


def task_of(config: Mapping[str, object]) -> str | None:
    """The task of a folder's ``config.json``, as the hub names it; None if it does not say.

    Example:
        >>> task_of({"architectures": ["ViTForImageClassification"]})
        'image-classification'
    """
    found = config.get("architectures")
    name = str(found[0]) if isinstance(found, list) and found else ""
    return next((task for ending, task in _TASKS.items() if name.endswith(ending)), None)


def front_matter(
    models: Sequence[CardModel], name: str, base_model: str | None, task: str | None
) -> dict[str, str]:
    """The card's YAML, an entry for each key of the hub."""
    library = "transformers.js" if all(item.dtype for item in models) else "onnx"
    found = {
        "base_model": base_model and _text(base_model),
        "base_model_relation": "quantized",
        "library_name": library,
        "pipeline_tag": task,
    }
    entries = {key: f"{key}: {value}" for key, value in found.items() if value}
    entries["tags"] = "tags:\n- onnx\n- ptq"
    results = [line for item in models for line in _results(item, task, alone=len(models) == 1)]
    if results:
        entries["model-index"] = "\n".join([f"model-index:\n- name: {_text(name)}\n  results:", *results])
    return entries


def _results(item: CardModel, task: str | None, *, alone: bool) -> Iterator[str]:
    report = item.report
    measured = (
        [] if report is None else [each for each in report.metrics if math.isfinite(each.quantized_value)]
    )
    if report is None or not measured:
        return
    data = _text(PurePath(report.evaluation.source).name)
    yield f"  - task:\n      type: {task or _UNKNOWN_TASK}"
    yield f"    dataset:\n      name: {data}\n      type: {data}"
    yield "    metrics:"
    for each in measured:
        said = each.name if alone else f"{each.name} of {item.file.as_posix()}"
        kind = _METRICS.get(each.name, each.name)
        yield f"    - type: {_text(kind)}\n      name: {_text(said)}\n      value: {each.quantized_value!r}"


def _text(value: str) -> str:
    is_bare = _BARE.fullmatch(value) and value.lower() not in _VALUES
    return value if is_bare else json.dumps(value)


def card_body(models: Sequence[CardModel], name: str) -> str:
    """The card's text: what was measured of each file, and how it was made."""
    parts = [f"# {escape(name)}", _summary(models)]
    for item in models:
        parts += _measured(item, alone=len(models) == 1)
    parts += ["## Files", _files(models)]
    parts.append("## How it was made")
    for item in models:
        parts += _made(item, alone=len(models) == 1)
    return "\n\n".join(parts)


def _summary(models: Sequence[CardModel]) -> str:
    version = models[0].metadata.get(MetadataKey.VERSION, "")
    lines = [f"Quantized after training with {' '.join(filter(None, ('ptq', escape(version))))}."]
    for item in models:
        if item.dtype is not None:
            lines.append(f'Transformers.js loads `{item.file.as_posix()}` with `dtype: "{item.dtype}"`.')
    return "\n".join(lines)


def _measured(item: CardModel, *, alone: bool) -> Iterator[str]:
    report = item.report
    if report is None:
        return
    yield "## Accuracy" if alone else f"## Accuracy of {escape(item.file.as_posix())}"
    for table in (label_table(report), comparison_table(report)):
        if table.rows:
            yield markdown_table(table)
    seen = report.evaluation
    where = f" on {report.times.processor}" if report.times.processor else ""
    runtime = f", ONNX Runtime {report.versions['onnxruntime']}" if "onnxruntime" in report.versions else ""
    data = PurePath(seen.source).name
    said = f"Measured on {seen.samples:,} {seen.noun(seen.samples)} of {data}{where}{runtime}."
    lines = [said, f"{placement_line(report)}.", *no_interval_lines(report), *speed_lines(report.times)]
    yield "\n".join(escape(line, MAX_PARAGRAPH) for line in lines)


def _files(models: Sequence[CardModel]) -> str:
    rows = []
    for item in models:
        share = share_of_float(item.bytes, item.report.model.float_bytes) if item.report is not None else ""
        size = ", ".join(filter(None, (format_bytes(item.bytes), share)))
        rows.append((item.file.as_posix(), size, item.sha256))
    return markdown_table(Table(("file", "size", "SHA-256"), tuple(rows)), MAX_PARAGRAPH)


def _made(item: CardModel, *, alone: bool) -> Iterator[str]:
    if not alone:
        yield f"### {escape(item.file.as_posix())}"
    yield markdown_table(Table(("item", "value"), tuple(_origin(item))), MAX_PARAGRAPH)
    if item.recipe:
        evaluated = " --set run.evaluate=true" if item.report is not None else ""
        yield f"```bash\nptq quantize --recipe recipe.toml{evaluated}\n```"
        yield f"<details>\n<summary>recipe.toml</summary>\n\n{_fenced('toml', item.recipe)}\n\n</details>"


def _fenced(language: str, text: str) -> str:
    fence = "`" * (3 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.strip()}\n{fence}"


def _origin(item: CardModel) -> Iterator[tuple[str, str]]:
    report, told = item.report, item.metadata
    if report is not None:
        yield "float model", PurePath(report.model.source).name
    for label, key in _TOLD.items():
        if key in told:
            yield label, told[key]
    if report is None:
        return
    seen, calibrated = report.evaluation, report.calibration
    yield "ranges", report.amax.text
    yield (
        "calibration",
        f"{calibrated.method}, {calibrated.samples:,} {seen.noun(calibrated.samples)}, "
        f"data {calibrated.data_digest}",
    )
    yield "evaluation", f"{seen.samples:,} {seen.noun(seen.samples)}, data {seen.data_digest}"
    if report.times.processor:
        yield "processor", report.times.processor
    yield "versions", ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    yield "evaluated", report.created


def placed_card(front: Mapping[str, str], body: str, existing: str | None, name: str) -> str:
    r"""The text of the card's file: new, or ``existing`` with the marked parts replaced.

    Keys that the user wrote outside the marks are theirs, and left out of the marked part.

    Raises:
        OutputFileError: the file has other text, and no marks.

    Example:
        >>> first = placed_card({"tags": "tags: []"}, "One.", None, "README.md")
        >>> mine = first.replace("# ptq:begin", "license: mit\ntags: [mine]\n# ptq:begin") + "More.\n"
        >>> print(placed_card({"tags": "tags: []", "library_name": "library_name: onnx"}, "Two.", mine, ""))
        ---
        license: mit
        tags: [mine]
        # ptq:begin
        library_name: onnx
        # ptq:end
        ---
        <BLANKLINE>
        <!-- ptq:begin -->
        Two.
        <!-- ptq:end -->
        More.
        <BLANKLINE>
    """
    text = existing
    if text is None:
        text = "---\n{}\n{}\n---\n\n{}\n{}\n".format(*_OF_YAML, *_OF_TEXT)
    frame = re.match(r"---\n.*?^---$", text, re.MULTILINE | re.DOTALL)
    yaml = _marked(_OF_YAML).search(frame[0]) if frame is not None else None
    if frame is None or yaml is None or _marked(_OF_TEXT).search(text) is None:
        raise OutputFileError(
            f"'{name}' is there already, and ptq did not write it",
            hint="name another file with --output, and take over from it what you like",
        )
    theirs = set(_KEY.findall(frame[0].replace(yaml[0], "")))
    own = "\n".join(entry for key, entry in front.items() if key not in theirs)
    for marks, content in ((_OF_YAML, own), (_OF_TEXT, body)):
        head, _, rest = text.partition(f"{marks[0]}\n")
        text = "\n".join((f"{head}{marks[0]}", content, marks[1] + rest.partition(marks[1])[2]))
    return text


def _marked(marks: tuple[str, str]) -> re.Pattern[str]:
    begin, end = map(re.escape, marks)
    return re.compile(rf"^{begin}$.*?^{end}$", re.MULTILINE | re.DOTALL)
