"""``report.html`` as the commands write it: whole, reproducible, harmless whatever names a layer has."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ptq_cli
from ptq_cli.core.documents import read_document, to_json
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.latency.measure_profile import operators_digest
from ptq_cli.pipeline.evaluation.report_page import STALE_ANALYSIS, gather, read_material
from ptq_cli.placement.fastest_placement import NodeTimes
from ptq_cli.report.html.fact_rows import LayerEvidence, TensorEvidence
from ptq_cli.report.html.page_view import NOT_ANALYZED
from ptq_cli.setup.run_directory import RunDirectory
from tests.browser import CONTRAST, start_browser
from tests.each_case import table
from tests.pages import Network

TIMES = re.compile(r'<div class="sheet pad" id="times">.*?</div>', re.DOTALL)
QUANTIZE = "quantize {} --data calib.npz --eval-data eval.npz --set run.evaluate=true --run {}"
SCRIPT = "<script>alert(1)</script>"
ATTRIBUTE = '"><img src=x onerror=alert(2)>'


def page_of(run: Path) -> str:
    """The page without what differs from one run to the next."""
    text, count = TIMES.subn("", (run / "report.html").read_text(encoding="utf-8"))
    assert count == 1
    return text


def test_two_runs_write_the_same_page(folder: Path, ptq: Any) -> None:
    pages = []
    for _ in range(2):
        assert ptq(QUANTIZE.format("model.onnx", "one")).status == 0
        pages.append(page_of(folder / "one"))
    assert pages[0] == pages[1]


def test_a_browser_has_nothing_to_complain_about(folder: Path, ptq: Any) -> None:
    assert ptq("analyze --samples 8").status == 0
    for browser in start_browser():
        browser.get((folder / "ptq-run/report.html").as_uri())
        assert len(browser.find_elements("css selector", "#layer-table tbody tr")) > 3
        assert browser.execute_script(CONTRAST) == []
        assert browser.get_log("browser") == []


def test_the_page_is_made_again_without_running_a_model(folder: Path, ptq: Any) -> None:
    before = (folder / "ptq-run/report.html").read_bytes()
    (folder / "ptq-run/report.html").unlink()
    for name in ("model.onnx", "calib.npz", "eval.npz"):
        (folder / name).unlink()
    outcome = ptq("report")
    assert (outcome.status, outcome.out, outcome.err) == (0, "wrote ptq-run/report.html\n", "")
    assert (folder / "ptq-run/report.html").read_bytes() == before
    assert json.loads(ptq("report --json").out) == {"page": "ptq-run/report.html", "notes": []}


def test_the_page_shows_the_times_of_a_profile_of_its_model(folder: Path, ptq: Any) -> None:
    run = RunDirectory(folder / "ptq-run")
    digest = operators_digest(ir.load(run.path / "model.float.onnx"))
    times = {layer.name: NodeTimes(30.0, 12.5) for layer in read_document(Report, run.report_json).layers}
    profile = replace(Network().page_input().profile, model=digest, nodes=times)
    for model, count in ((digest, len(times)), ("e" * 64, 0)):
        run.profile.write_bytes(to_json(replace(profile, model=model)).encode())
        assert ptq("report").status == 0
        assert page_of(run.path).count('<td class="num" data-l="In float"><span>30 µs</span>') == count


def test_the_page_shows_what_the_calibration_saw(folder: Path) -> None:
    text = page_of(folder / "ptq-run")
    assert text.count('class="sheet card"') == len(re.findall('id="b[0-9]+"', text)) > 2
    for method in ("max", "percentile", "entropy", "mse"):
        assert f">{method}</th>" in text
    assert "in the file (percentile)" in text
    assert NOT_ANALYZED in text
    for layer in read_document(Report, folder / "ptq-run/report.json").layers:
        assert layer.name in text.replace("<wbr>", "")


@pytest.fixture
def gathered(folder: Path) -> tuple[tuple[LayerEvidence, ...], tuple[TensorEvidence, ...]]:
    """What a page shows of the finished run's models and calibration."""
    run = folder / "ptq-run"
    material = read_material(read_document(Report, run / "report.json"), RunDirectory(run))
    layers, tensors, notes = gather(material)
    assert notes == ()
    return layers, tensors


def test_the_tensors_are_those_of_the_calibration(gathered: Any) -> None:
    _, tensors = gathered
    shown = ptq_cli.show_calibration().tensors
    assert [tensor.name for tensor in tensors] == [view.name for view in shown]
    for tensor, view in zip(tensors, shown, strict=True):
        own = view.methods[view.chosen]
        assert (tensor.chosen.method, tensor.chosen.low, tensor.chosen.high) == (
            "percentile",
            own.choice.low,
            own.choice.high,
        )
        assert [found.method for found in tensor.ranges] == list(view.methods)
        assert own.clipped is not None and tensor.chosen.clipped == own.clipped[0]
        assert sum(tensor.counts) == pytest.approx(tensor.values - (tensor.zeros or 0))


def test_the_analysis_joins_the_page_and_stays_there(folder: Path, ptq: Any) -> None:
    assert ptq("analyze --samples 8").status == 0
    text = page_of(folder / "ptq-run")
    assert NOT_ANALYZED not in text and "weights and activations" in text and "SQNR acc." in text
    assert ptq("evaluate").status == 0
    assert page_of(folder / "ptq-run") == text
    assert ptq("export --amax max").status == 0
    assert ptq("evaluate").status == 0
    text = page_of(folder / "ptq-run")
    assert STALE_ANALYSIS.partition("'")[0] in text and "a different quantized model" in text
    assert 'id="depth-title"' not in text


@pytest.mark.parametrize(
    ("flags", "dtype"),
    table("""
    ~                                                        | float32, int8 weight
    --weight-bits 5                                          | float32, weight: scaled, 5 bits
    --exclude fc                                             | float32
    --set weights.quantizer=centers --set weights.centers=16 | float32, weight: centers (16), 4 bits
"""),
)
def test_a_layers_type_is_what_it_was_exported_as(folder: Path, ptq: Any, flags: str, dtype: str) -> None:
    assert ptq(f"export {flags}").status == 0
    assert ptq("evaluate").status == 0
    text = page_of(folder / "ptq-run")
    (row,) = re.findall(r"<tr id=[^>]*><th[^>]*>(?:<a[^>]*>)?fc<.*?</tr>", text, re.DOTALL)
    assert re.findall(r'class="dtype">([^<]*)<', row) == [dtype]


@pytest.mark.parametrize(
    "flags", ["--amax mse --set amax.weight_method=percentile", "--exclude fc", "--weight-bits 4"]
)
def test_the_command_on_the_page_makes_it_again(folder: Path, ptq: Any, flags: str) -> None:
    assert ptq(f"export {flags}").status == 0
    assert ptq("evaluate --eval-samples 12 --min sqnr_db=10").status == 0
    # Its name says what its weights are.
    (file,) = (path for path in (folder / "ptq-run").glob("model_*.onnx"))
    text, model = page_of(folder / "ptq-run"), file.read_bytes()
    (command,) = re.findall(r"<code>(ptq quantize [^<]*)</code>", text)
    shutil.copytree(folder / "ptq-run", folder / "kept")
    shutil.rmtree(folder / "ptq-run")
    (folder / "ptq-run").mkdir()
    shutil.copy(folder / "kept/report.toml", folder / "ptq-run/report.toml")
    assert ptq(*shlex.split(command)[1:]).status == 0
    assert file.read_bytes() == model
    assert page_of(folder / "ptq-run") == text


def test_a_model_from_elsewhere_is_told(folder: Path, ptq: Any) -> None:
    assert ptq("export --amax max --output elsewhere/other.onnx").status == 0
    assert ptq("export").status == 0
    assert ptq("evaluate elsewhere/other.onnx").status == 0
    text = page_of(folder / "ptq-run")
    assert "in the file (max)" in text
    outcome = ptq("report")
    assert outcome.status == 0
    assert "note: No histograms: 'other.onnx' of the report is not in the run directory" in outcome.out


def test_each_of_several_models_has_its_page(folder: Path, ptq: Any) -> None:
    for method in ("max", "mse"):
        assert ptq(f"export --amax {method} --output ptq-run/{method}.onnx").status == 0
    assert ptq("evaluate --model ptq-run/max.onnx --model ptq-run/mse.onnx").status == 0
    for method in ("max", "mse"):
        text = page_of(folder / "ptq-run" / method)
        assert f"in the file ({method})" in text
        outcome = ptq(f"report --run ptq-run/{method}")
        assert (outcome.status, page_of(folder / "ptq-run" / method)) == (0, text)


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        (("calibration.safetensors",), "No histograms: 'ptq-run/calibration.safetensors' does not exist"),
        (("model_int8.onnx",), "No histograms: 'model_int8.onnx' of the report is not in the run directory"),
        (("report.toml",), "The settings behind this report are not in the run directory."),
        (("details.json",), ""),
        (("model.float.onnx", "calibration.safetensors", "details.json", "report.toml"), "No histograms"),
    ],
)
def test_a_page_without_something_says_so(folder: Path, ptq: Any, lost: tuple[str, ...], says: str) -> None:
    for name in lost:
        (folder / "ptq-run" / name).unlink()
    outcome = ptq("report")
    assert outcome.status == 0
    assert says in outcome.out
    text = page_of(folder / "ptq-run")
    assert says.replace("'", "&#39;") in text
    assert "top1" in text


@pytest.mark.parametrize("name", ["details.json", "analysis.json", "report.toml", "calibration.safetensors"])
def test_a_damaged_file_is_left_out(folder: Path, ptq: Any, name: str) -> None:
    (folder / "ptq-run" / name).write_bytes(b"\xff\xfe{damaged")
    outcome = ptq("report")
    assert (outcome.status, outcome.err) == (0, "")
    assert "top1" in page_of(folder / "ptq-run")


def test_a_calibration_of_another_model_is_left_out(folder: Path, ptq: Any) -> None:
    model = onnx.load(folder / "model.onnx")
    array = onnx.numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.ones_like(array), model.graph.initializer[0].name)
    )
    onnx.save(model, folder / "other.onnx")
    assert ptq("calibrate other.onnx --data calib.npz --run other").status == 0
    shutil.copy(folder / "other/calibration.safetensors", folder / "ptq-run")
    outcome = ptq("report")
    assert outcome.status == 0
    says = "the run's calibration is for a different model than the report"
    assert f"No histograms: {says}" in outcome.out
    assert says.replace("'", "&#39;") in page_of(folder / "ptq-run")


def test_a_page_needs_a_report(refuse: Any, folder: Path) -> None:
    (folder / "ptq-run/report.json").unlink()
    refuse("report", "PTQ-RUN-001", "'ptq-run/report.json' does not exist", hint="run ptq evaluate first")


def test_samples_that_change_are_named_without_images(folder: Path, ptq: Any) -> None:
    random = np.random.default_rng(7)
    # Of very different colors: the tiny model sees little else.
    x = random.normal(size=(400, 3, 1, 1)) + 0.2 * random.normal(size=(400, 3, 8, 8))
    np.savez(folder / "colors.npz", x=x.astype(np.float32), label=random.integers(0, 5, 400))
    assert ptq("evaluate --eval-data colors.npz --min top1=0.01").status == 0
    changed = json.loads((folder / "ptq-run/details.json").read_text())["changes"]
    assert changed["total"] == len(changed["samples"]) > 0
    text = page_of(folder / "ptq-run")
    assert f"{changed['total']} of 400 samples get a different class" in text
    assert changed["samples"][0]["name"] in text and "<img" not in text
    assert ptq("report").status == 0
    assert page_of(folder / "ptq-run") == text


@pytest.fixture
def hostile(folder: Path) -> Path:
    """The tiny model with a second output, and names that would be markup or commands, were they obeyed."""
    model = onnx.load(folder / "model.onnx")
    renamed: dict[str, str] = {}
    for index, node in enumerate(model.graph.node):
        node.name = f"{SCRIPT}/{ATTRIBUTE}/\x1b[31m|*{index}*|\u202e{node.op_type}"
        for place, name in enumerate(node.output):
            last = index + 1 == len(model.graph.node)
            renamed[name] = f"{SCRIPT}{ATTRIBUTE}{'out' if last else index}"
            node.output[place] = renamed[name]
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
    model.graph.output[0].name = renamed[model.graph.output[0].name]
    model.graph.output.add().CopyFrom(
        onnx.helper.make_tensor_value_info(renamed["pool"], onnx.TensorProto.FLOAT, ["batch", 8, 1, 1])
    )
    onnx.save(model, folder / "hostile.onnx")
    return folder


def test_a_layer_called_script_is_a_text_in_every_format(hostile: Path, ptq: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    summary = hostile / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    words = f"{QUANTIZE.format('hostile.onnx', 'h')} --min sqnr_db=1"
    outcomes = [ptq(words), ptq("analyze --samples 8 --run h"), ptq("inspect hostile.onnx")]
    outcomes += [ptq("inspect --run h"), ptq("gate h/report.json"), ptq("report --run h")]
    outcomes += [ptq("report h/report.json h/report.json"), ptq("verify h/model_int8.onnx")]
    outcomes += [
        ptq("export --float hostile.onnx -o p.onnx"),
        ptq("export --exclude *Gemm --run h -o e.onnx"),
    ]
    for outcome in outcomes:
        assert outcome.status == 0, outcome
        assert not set("\x1b\u202e") & set(outcome.out + outcome.err)
    assert SCRIPT in re.sub(r"\s", "", outcomes[2].out), "shown as it is called"
    html = (hostile / "h/report.html").read_text(encoding="utf-8")
    assert html.count("<script>") == 1 and "<img" not in html
    assert "&lt;script&gt;alert(1)&lt;/" in html
    for markdown in ((hostile / "h/report.md").read_text(), summary.read_text()):
        assert "<script" not in markdown and "<img" not in markdown
        assert not set("\x1b\u202e") & set(markdown)
    assert "&#60;script&#62;alert" in (hostile / "h/report.md").read_text()
    for name in ("report.json", "analysis.json", "details.json"):
        assert (hostile / "h" / name).read_text(encoding="utf-8").isascii()
    assert any(SCRIPT in layer.name for layer in read_document(Report, hostile / "h/report.json").layers)


def test_a_metric_of_such_an_output_is_a_text(hostile: Path, ptq: Any) -> None:
    assert ptq(QUANTIZE.format("hostile.onnx", "h")).status == 0
    (name,) = [
        metric.name
        for metric in read_document(Report, hostile / "h/report.json").metrics
        if metric.name.startswith("sqnr_db[")
    ]
    assert SCRIPT in name and ATTRIBUTE in name
    assert ptq("evaluate", "--run", "h", "--min", f"{name}=999").status == 3
    (case,) = Xml.parse(hostile / "h/junit.xml").getroot().iter("testcase")
    assert case.get("name") == f"{name} at least 999.00 dB"
    html = (hostile / "h/report.html").read_text(encoding="utf-8")
    assert html.count("<script>") == 1 and "<img" not in html
    assert (
        html.replace("<wbr>", "").count("sqnr_db[&lt;script&gt;alert(1)&lt;/script&gt;&#34;&gt;&lt;img") >= 2
    )
