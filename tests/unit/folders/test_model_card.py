"""The model card of a run: the hub reads it, it says what was measured, and leaves what others wrote."""

import json
import shutil
from pathlib import Path

import onnx
import pytest

import ptq_cli
from ptq_cli.core.errors import ModelFolderError, OutputFileError
from ptq_cli.folders.model_card import run_card
from ptq_cli.setup.run_directory import RunDirectory
from tools.pages.folders import make

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a report."""
    folder = tmp_path_factory.mktemp("card")
    make("digits", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ptq_cli.quantize(
            "model.onnx",
            data="calib.npz",
            samples=32,
            eval_data="eval.npz",
            metric=["top1"],
            latency=False,
        )
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_hub_reads_every_metric_and_a_reader_finds_how_it_was_made(folder: Path) -> None:
    result = run_card(RunDirectory(Path("ptq-run")), base_model="me/digits")
    assert (result.card, result.notes) == (Path("ptq-run/README.md"), ())
    text, report = result.card.read_text(), json.loads(Path("ptq-run/report.json").read_text())
    data = hub.ModelCard(text).data
    assert (data.base_model, data["base_model_relation"]) == ("me/digits", "quantized")
    assert (data.library_name, data.tags) == ("onnx", ["onnx", "ptq"])
    found = {item.metric_name: item for item in data.eval_results}
    assert {name: item.metric_value for name, item in found.items()} == {
        item["name"]: item["quantized_value"] for item in report["metrics"]
    }
    assert (found["top1"].metric_type, found["top1"].dataset_name) == ("accuracy", "eval.npz")
    entry = report["model"]["quantized_model"]
    for told in (entry["sha256"], report["times"]["processor"], "bins = 2048", "95 % interval"):
        assert told in text
    assert str(folder) not in text and 'data = "calib.npz"' in text


def test_what_was_not_measured_is_left_out(folder: Path) -> None:
    run = RunDirectory(Path("ptq-run"))
    model = onnx.load(run.quantized_model)
    model.doc_string = "changed since"
    onnx.save(model, run.quantized_model)
    changed, base = run_card(run).notes
    assert "'ptq-run/report.json' is of another model" in changed and "--base-model" in base
    text = (run.path / "README.md").read_text()
    assert "model-index" not in text and "base_model:" not in text and "## Accuracy" not in text
    assert {item.key: item.value for item in model.metadata_props}["ptq.float_sha256"] in text


def test_a_card_is_written_again_around_what_the_user_wrote_and_no_other_file_is_touched(
    folder: Path,
) -> None:
    run, card = RunDirectory(Path("ptq-run")), Path("ptq-run/README.md")
    card.write_bytes(b"# Mine\n")
    with pytest.raises(OutputFileError, match=r"README.md' is there already, and ptq did not write it"):
        run_card(run)
    assert card.read_bytes() == b"# Mine\n"
    card.unlink()
    run_card(run)
    first = card.read_bytes()
    theirs = first.replace(b"---\n# ptq", b"---\nlicense: mit\ntags: [mine]\n# ptq", 1) + b"By me, \xff.\n"
    card.write_bytes(theirs.replace(b"## Files", b"## Changed by hand"))
    run_card(run)
    assert card.read_bytes() == theirs.replace(b"tags:\n- onnx\n- ptq\n", b"")


@pytest.mark.parametrize(
    "text", ["[", '{"format_version": 1}', '{"format_version": 9, "files": [{}]}', "[" * 9999]
)
def test_a_damaged_summary_is_refused(folder: Path, text: str) -> None:
    Path("other").mkdir()
    Path("other/folder.json").write_text(text)
    with pytest.raises(ModelFolderError, match=r"summary 'other/folder.json': "):
        run_card(RunDirectory(Path("other")))
