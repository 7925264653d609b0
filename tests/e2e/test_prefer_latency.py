"""``ptq profile`` and ``ptq export --prefer latency``: which layers stay in float, and what is refused.

The times are a test's own, written into a profile: how fast this machine is decides nothing here.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq_cli.core.documents import read_document
from ptq_cli.models.files.stored import serialize
from ptq_cli.placement.fastest_placement import MachineProfile
from tests.unit.plan.graphs import build

TINY_HEAD = """(float[N,32,32,32] x) => (float[] y) <float[32,32,3,3] w, float[8,8] d, int64[3] t = {0,-1,8}>
{
    b = Conv <pads = [1, 1, 1, 1]> (x, w)
    p = Sin (b)
    q = Reshape (p, t)
    [tiny] y = MatMul (q, d)
}"""


@pytest.fixture
def profile(folder: Path, ptq: Any) -> dict[str, Any]:
    outcome = ptq(
        "bench --operators ptq-run/model.float.onnx --data calib.npz --batch 2 --threads 1 -o here.json"
    )
    assert outcome.status == 0
    assert "at batch 2 and 1 thread: " in outcome.out and "wrote here.json" in outcome.out
    return json.loads((folder / "here.json").read_text())


def written(profile: dict[str, Any], floating: float, integer: float) -> str:
    """A profile of the same model, of a machine with these times for each node."""
    nodes = {name: {"floating": floating, "integer": integer} for name in profile["nodes"]}
    count = len(nodes)
    times = {"floating": floating * count, "integer": integer * count, "seam_fixed": 1.0, "seam_element": 0.0}
    return json.dumps({**profile, "nodes": nodes, **times})


def test_layers_that_are_slower_in_integers_stay_in_float(folder, ptq, profile):
    (folder / "slow.json").write_text(written(profile, 10.0, 30.0))
    outcome = ptq("export --prefer latency --set export.profile=slow.json -o all-float.onnx --json")
    result = json.loads(outcome.out)
    assert not any(layer["integer"] for layer in result["layers"])
    assert "faster in float here: 20 µs of 60 µs" in {layer["reason"] for layer in result["layers"]}
    assert result["latency"]["batch"] == 2 and result["latency"]["source"].endswith("slow.json")
    text = ptq("export --prefer latency --set export.profile=slow.json -o all-float.onnx")
    assert "int8 gains nothing on this processor" in text.out and "by 'slow.json'" in text.out
    assert ptq("evaluate all-float.onnx --eval-data eval.npz").status == 0
    assert ptq("verify all-float.onnx").status == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "0" * 64}, "the profile of another model"),
        ({"target": "generic"}, "a profile for target 'generic', not 'ort-cpu'"),
        ({"runtime": "onnxruntime 0.1"}, "was measured with onnxruntime 0.1, and this is onnxruntime"),
        ({"runtime_operators": True}, "was measured with ONNX Runtime's own operators"),
        ({"nodes": 3}, "'nodes' is 3, expected an object"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused(folder, refuse, profile, change, said):
    (folder / "other.json").write_text(json.dumps({**profile, **change}))
    refuse("export --prefer latency --set export.profile=other.json", "PTQ-PROFILE-001", said)


def test_what_cannot_be_measured_is_refused(folder: Path, refuse: Any) -> None:
    refuse("export --prefer latency --target generic", "PTQ-PROFILE-002", "no installed runtime runs it")
    refuse("export --prefer latency --set export.serve_batch=0", "PTQ-RECIPE-003", "serve_batch")
    refuse("export --prefer latency --set export.profile=missing.json", "PTQ-FILE-001", "missing.json")
    refuse("export --prefer speed", "PTQ-USAGE-001", "latency")
    says = "'export.profile' has no effect where 'export.prefer' is "
    refuse(
        "export --prefer accuracy --set export.profile=x.json",
        "PTQ-RECIPE-003",
        says,
        hint="--prefer latency",
    )
    refuse("export --set export.profile=x.json", "PTQ-RECIPE-003", says)
    refuse(
        "bench --operators ptq-run/model.float.onnx --set quantization.target=tensorrt -o p.json",
        "PTQ-PROFILE-002",
        "tensorrt",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spread": 3.1}, "the machine is busy: the median run takes 3.1 times as long as a fast one"),
        ({"floating": 12.0}, "a run takes 12 µs, which is too short to measure its parts"),
    ],
)
def test_what_cannot_be_decided_keeps_all_in_integers_and_says_so(
    folder, ptq, profile, monkeypatch, change, said
):
    (folder / "slow.json").write_text(json.dumps({**json.loads(written(profile, 10.0, 30.0)), **change}))
    slow = read_document(MachineProfile, folder / "slow.json")
    monkeypatch.setattr("ptq_cli.latency.measure_profile.profile_here", lambda *_, **__: slow)
    before = (folder / "ptq-run/model_int8.onnx").read_bytes()
    outcome = ptq("export --prefer latency")
    assert outcome.status == 0 and f"warning: layers were not placed by latency: {said}" in outcome.out
    assert (folder / "ptq-run/model_int8.onnx").read_bytes() == before


def test_size_quantizes_what_saves_neither_bytes_nor_time(tmp_path, ptq, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(serialize(build(TINY_HEAD)).content)
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((2, 32, 32, 32)).astype(np.float32))
    assert ptq("calibrate model.onnx --data x.npz").status == 0
    found = {}
    for words in ("--prefer accuracy", "--prefer size"):
        layers = json.loads(ptq(f"export {words} -o out.onnx --json").out)["layers"]
        found[words] = {layer["name"]: layer["integer"] for layer in layers}
    assert [found[words]["tiny"] for words in found] == [False, True]
