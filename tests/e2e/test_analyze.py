"""``ptq analyze``: tables that fit, JSON alone, refusals, and what it leaves when it is interrupted."""

import json
import platform
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from ptq_cli.core.documents import read_document
from ptq_cli.evaluation.document.analysis_document import Analysis
from tests.e2e.conftest import Ptq, Refuse, make_arrays
from tests.each_case import each_case, table


def test_a_table_of_layers(folder: Path, ptq: Ptq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    outcome = ptq("analyze --eval-data eval.npz")
    assert outcome.status == 0, outcome
    assert "analyzed 4 activations, 4 constants and 4 layers on 20 samples," in outcome.out
    assert "\ndata: eval.npz\n" in outcome.out
    header = next(line for line in outcome.out.splitlines() if "own/accum." in line)
    names = ("#", "layer", "output", "cause", "own/accum.", "as", "op", "left float", "top1 drop", "time")
    assert header.split() == " ".join(names).split()
    rows = [line.split() for line in outcome.out.splitlines() if line.strip()[:2] in ("1 ", "2 ")]
    assert [row[0] for row in rows] == ["1", "2"]
    analysis = read_document(Analysis, folder / "ptq-run" / "analysis.json")
    assert [row[1] for row in rows] == [layer.name for layer in analysis.ranked()[:2]]
    assert outcome.out.rstrip().endswith("wrote ptq-run/analysis.json and report.html")
    monkeypatch.setenv("COLUMNS", "50")
    outcome = ptq("analyze --eval-data eval.npz --metric cosine --top 1")
    assert "1 of 4 layers; --top 4 shows all" in outcome.out
    assert "left float: " not in outcome.out


def test_tensors_worst_first(folder: Path, ptq: Ptq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    outcome = ptq("analyze --eval-data eval.npz --no-sensitivity --top 3")
    rows = [line.split() for line in outcome.out.splitlines() if " int8 " in line or " uint8 " in line]
    assert len(rows) == 3
    ratios = [float(row[1]) for row in rows]
    assert ratios == sorted(ratios)
    assert "3 of 8 tensors; --top 8 shows all" in outcome.out


@each_case(
    "words, code, says",
    table("""
    analyze gone.onnx --eval-data eval.npz  | PTQ-FILE-001  | gone.onnx
    analyze model.onnx --eval-data eval.npz | PTQ-FILE-001  | was not written by ptq export
    analyze --eval-data nan.npz             | PTQ-DATA-008  | nan.npz[1]
    analyze --eval-data eval.npz --top 0    | PTQ-USAGE-001 | --top
    analyze                                 | PTQ-DATA-005  | no evaluation data
"""),
)
def test_bad_input_is_refused(folder: Path, refuse: Refuse, words: str, code: str, says: str) -> None:
    arrays = make_arrays(3, seed=3)
    np.savez("bare.npz", x=arrays["x"])
    np.savez("wrong.npz", x=arrays["x"][..., :4], label=arrays["label"])
    arrays["x"][1, 0, 0, 0] = np.nan
    np.savez("nan.npz", **arrays)
    (folder / "ptq-run" / "recipe.toml").write_text("")
    (folder / "ptq-run" / "report.toml").unlink(missing_ok=True)
    refuse(words, code, says)


OVERLAYS = {
    "sqnr.json": "SQNR (dB)",
    "sqnr.kernel.json": "kernel",
    "sqnr.bits.json": "bits",
    "sqnr.time.json": "time (µs)",
}


def test_overlays_for_model_explorer(folder: Path, ptq: Ptq) -> None:
    outcome = ptq("analyze --eval-data eval.npz --no-sensitivity --model-explorer sqnr.json")
    assert outcome.out.splitlines()[-1] == f"wrote {', '.join(OVERLAYS)} for Model Explorer"
    graph = onnx.load(folder / "ptq-run" / "model_int8.onnx").graph
    nodes = {node.name for node in graph.node}
    found = {}
    for file, name in OVERLAYS.items():
        ((key, overlay),) = json.loads((folder / file).read_text(encoding="utf-8")).items()
        assert (key, overlay["name"]) == (graph.name, name)
        assert overlay["results"] and set(overlay["results"]) <= nodes
        assert set(overlay) <= {"results", "name", "gradient"}
        found[name] = {node: result["value"] for node, result in overlay["results"].items()}
    analysis = read_document(Analysis, folder / "ptq-run" / "analysis.json")
    conv = next(layer for layer in analysis.layers if layer.name == "conv")
    assert found["SQNR (dB)"]["conv"] == pytest.approx(conv.sqnr_accumulated_db, abs=0.01)
    assert (found["kernel"]["conv"], found["bits"]["conv"]) == ("integer", 8)
    assert found["time (µs)"]["conv"] > 0


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="not installed on other systems"
)
def test_model_explorer_reads_the_overlays(folder: Path, ptq: Ptq) -> None:
    builder = pytest.importorskip("model_explorer.node_data_builder")
    ptq("analyze --eval-data eval.npz --no-sensitivity --model-explorer sqnr.json")
    for file in OVERLAYS:
        ((graph, overlay),) = json.loads((folder / file).read_text(encoding="utf-8")).items()
        data = builder.GraphNodeData(
            results={node: builder.NodeDataResult(**result) for node, result in overlay["results"].items()},
            name=overlay["name"],
            gradient=[builder.GradientItem(**item) for item in overlay.get("gradient", [])],
        )
        again = json.loads(builder.ModelNodeData({graph: data}).to_json_string())[graph]
        assert {key: again[key] for key in overlay} == overlay


def test_an_overlay_takes_the_place_of_no_input(folder: Path, refuse: Refuse) -> None:
    refuse("analyze --eval-data eval.npz --model-explorer eval.npz", "PTQ-USAGE-001", "eval.npz")
    (folder / "shown.bits.npz").write_bytes((folder / "eval.npz").read_bytes())
    refuse("analyze --eval-data shown.bits.npz --model-explorer shown.npz", "PTQ-USAGE-001", "shown.bits.npz")
