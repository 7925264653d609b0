"""Folders as on the hub: places and names that loaders look for, how they were made, and one card."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.e2e.conftest import Ptq, Refuse
from tools.pages.folders import make

# What Optimum's ORTConfig and Transformers.js's QuantizationArguments write.
OF_OPTIMUM = {"one_external_file", "opset", "optimization", "quantization", "use_external_data_format"}
OF_SCRIPT = {
    "modes",
    "per_channel",
    "reduce_range",
    "block_size",
    "is_symmetric",
    "accuracy_level",
    "quant_type",
}
ENCODERS: dict[str, dict[str, Any]] = {
    "BertForSequenceClassification": {"vocab_size": 64, "max_position_embeddings": 40, "num_labels": 3},
    "ViTForImageClassification": {"image_size": 32, "patch_size": 8, "num_labels": 5},
}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make("digits", tmp_path)
    (tmp_path / "hub/onnx").mkdir(parents=True)
    (tmp_path / "model.onnx").rename(tmp_path / "hub/onnx/model.onnx")
    (tmp_path / "hub/config.json").write_text('{"architectures": ["XForImageClassification"]}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(path: str) -> list[str]:
    return sorted(item.relative_to(path).as_posix() for item in Path(path).rglob("*") if item.is_file())


def test_a_folder_is_published_in_two_commands(folder: Path, ptq: Ptq) -> None:
    data = "--data calib.npz --samples 32 --eval-data eval.npz --eval-samples 32 --metric top1"
    assert ptq(f"quantize hub {data} -o out").status == 0
    assert files("out") == [
        "config.json",
        "onnx/model_int8.intoto.json",
        "onnx/model_int8.onnx",
        "ort_config.json",
    ]
    told = json.loads(Path("out/ort_config.json").read_text())
    assert set(told) == OF_OPTIMUM
    quantized = told["quantization"]
    assert (quantized["is_static"], quantized["format"], quantized["mode"]) == (True, "QDQ", "QLinearOps")
    assert (quantized["activations_dtype"], quantized["weights_dtype"]) == ("QUInt8", "QInt8")
    model = onnx.load("out/onnx/model_int8.onnx")
    assert quantized["operators_to_quantize"] and {node.op_type for node in model.graph.node} >= {
        "QuantizeLinear"
    }
    assert (model.producer_name, model.producer_version) == ("ptq", "0.1.0")
    written = ptq("report --card --base-model me/digits")
    assert (written.status, written.out) == (0, "wrote out/README.md\n")
    text = Path("out/README.md").read_text()
    assert "library_name: transformers.js\npipeline_tag: image-classification\n" in text
    assert 'Transformers.js loads `onnx/model_int8.onnx` with `dtype: "int8"`.' in text
    assert ptq("report --card --json -o card.md").status == 0


def test_forms_lie_side_by_side_in_the_folder_itself(folder: Path, ptq: Ptq) -> None:
    for words in ("--preset dynamic", "--preset w8_block32 --run second", "--preset w4_block32 --run third"):
        made = ptq(f"quantize hub {words} -o hub")
        assert made.status == 0, made.err
    made = ("model_q4", "model_quantized")
    names = ["model.onnx", *(f"{name}{end}" for name in made for end in (".intoto.json", ".onnx"))]
    assert files("hub") == [
        "config.json",
        *(f"onnx/{name}" for name in names),
        "ort_config.json",
        "quantize_config.json",
    ]
    told = json.loads(Path("hub/quantize_config.json").read_text())
    assert set(told) == {*OF_SCRIPT, "op_block_list"}
    assert (told["modes"], told["block_size"]) == (["q8", "q4"], 32)
    dynamic = json.loads(Path("hub/ort_config.json").read_text())["quantization"]
    assert (dynamic["is_static"], dynamic["mode"]) == (False, "IntegerOps")


def test_a_single_file_gets_the_name_that_loaders_look_for_first(
    folder: Path, ptq: Ptq, refuse: Refuse
) -> None:
    made = ptq("quantize hub/onnx/model.onnx --data calib.npz --samples 32 --format hub -o out")
    assert made.status == 0, made.err
    assert files("out") == [
        "onnx/model_quantized.intoto.json",
        "onnx/model_quantized.onnx",
        "ort_config.json",
    ]
    assert ptq("evaluate out --eval-data eval.npz --eval-samples 32").status == 0
    assert ptq("report --card").status == 0
    assert "Transformers.js" not in Path("out/README.md").read_text(), "it needs a config.json"
    Path("out/README.md").write_text("# Mine\n")
    refuse("report --card", "PTQ-FILE-002", "'out/README.md' is there already")
    refuse("report --base-model me/x", "PTQ-USAGE-001", "--base-model is for a model card")


def test_a_run_directory_of_an_earlier_version_goes_on(folder: Path, ptq: Ptq) -> None:
    assert ptq("quantize hub/onnx/model.onnx --data calib.npz --samples 32").status == 0
    Path("ptq-run/model_int8.onnx").rename("ptq-run/model.int8.onnx")
    told = ptq("evaluate --eval-data eval.npz --eval-samples 32")
    assert told.status == 0 and "model.int8.onnx" in told.out
    assert ptq("export").status == 0
    assert files("ptq-run").count("model_int8.onnx") == 1 and "model.int8.onnx" not in files("ptq-run")


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A folder with ``config.json`` and ``model.safetensors``."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    kind = getattr(transformers, request.param)
    config = kind.config_class(**SMALL, **ENCODERS[request.param])
    kind(config).save_pretrained(tmp_path / "encoder")
    random = np.random.default_rng(0)
    ids = random.integers(1, 64, (16, 12))
    texts = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    pixels = {"pixel_values": random.standard_normal((16, 3, 32, 32)).astype(np.float32)}
    np.savez(tmp_path / "data.npz", **(texts if kind.main_input_name == "input_ids" else pixels))
    monkeypatch.chdir(tmp_path)
    return request.param


@pytest.mark.parametrize("encoder", ENCODERS, indirect=True)
def test_an_encoder_is_built_exported_and_quantized(encoder: str, ptq: Ptq) -> None:
    import torch
    import transformers

    made = ptq("quantize encoder --data data.npz -o encoder --prefer size")
    assert made.status == 0, made.err
    assert files("encoder") == [
        "config.json",
        "model.safetensors",
        "onnx/model_int8.intoto.json",
        "onnx/model_int8.onnx",
        "ort_config.json",
    ]
    model = getattr(transformers, encoder).from_pretrained("encoder").eval()
    # Texts of another length, and other samples than one batch of the calibration.
    arrays = {
        name: array[:3, :7] if array.ndim == 2 else array[:3] for name, array in np.load("data.npz").items()
    }
    with torch.no_grad():
        expected = model(**{name: torch.tensor(array) for name, array in arrays.items()})[0].numpy()
    from ptq_cli.runtime.session import Session

    (found,) = Session(Path("ptq-run/onnx/model/model.float.onnx").read_bytes(), threads=1).run(arrays)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    (quantized,) = Session(Path("encoder/onnx/model_int8.onnx").read_bytes(), threads=1).run(arrays)
    assert (quantized - expected).std() < 0.1 * expected.std()
    assert ptq("quantize encoder --data data.npz -o encoder --prefer size").status == 0, (
        "its own files are known"
    )


@pytest.mark.parametrize("encoder", ["BertForSequenceClassification"], indirect=True)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["BertLMHeadModel"]}, "BertLMHeadModel is not an encoder"),
        (
            {"architectures": ["Theirs"], "auto_map": {"AutoModel": "own.Theirs"}},
            "has no Theirs, and its code never",
        ),
        (
            {"architectures": ["BertForTokenClassification"], "num_hidden_layers": 3},
            "its weights lack bert.encoder.",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "it has a quantization_config"),
    ],
    ids=["decoder", "code", "weights", "quantized"],
)
def test_what_is_no_encoder_of_the_library_is_refused(
    encoder: str, refuse: Refuse, change: Any, said: str
) -> None:
    path = Path("encoder/config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    Path("encoder/own.py").write_text("raise SystemExit('it ran')")
    refuse("quantize encoder --data data.npz", "PTQ-MODEL-001", said)


def test_without_the_extra_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    Path("encoder").mkdir()
    Path("encoder/config.json").write_text("{}")
    Path("encoder/model.safetensors").write_bytes(b"")
    told = refuse(
        "quantize encoder --preset dynamic",
        "PTQ-USAGE-001",
        "a model of transformers, which is not installed",
    )
    assert told is None or "ptq-cli[hub]" in str(told)
