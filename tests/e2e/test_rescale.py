"""The rungs ``equalize`` and ``smooth``: channels get factors before the calibration, up to the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import ptq_cli
from ptq_cli.core.errors import StaleCalibrationError
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import rescale, scale_spaces
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recover.output_noise import noise_of, sqnr_of
from ptq_cli.runtime.session import Session
from ptq_cli.setup.run_directory import RunDirectory
from tests.unit.plan.graphs import build

BLOCKS = """(float[n, 4, 10, 10] x) => (float[n, 5] y)
    <float[16, 4, 3, 3] w1, float[16] b1, float[16, 1, 3, 3] w2, float[16] b2, float[16, 16, 1, 1] w3,
     float[16, 16, 3, 3] w4, float[5, 16] w5>
{
    [stem] c1 = Conv <pads=[1, 1, 1, 1]> (x, w1, b1)
    r1 = Relu (c1)
    [depthwise] c2 = Conv <pads=[1, 1, 1, 1], group=16> (r1, w2, b2)
    r2 = LeakyRelu <alpha = 0.1> (c2)
    [project] c3 = Conv (r2, w3)
    r3 = Relu (c3)
    [head] c4 = Conv (r3, w4)
    pool = GlobalAveragePool (c4)
    flat = Flatten (pool)
    [classifier] y = Gemm <transB = 1> (flat, w5)
}"""
ATTENTION = """(float[n, 6, 16] x) => (float[n, 6, 16] y)
    <float[16] g, float[16] b, float[16, 16] wq, float[16, 16] wk, float[16, 16] wv, float[16, 16] wo>
{
    h = LayerNormalization (x, g, b)
    [query] q = MatMul (h, wq)
    [key] k = MatMul (h, wk)
    [value] v = MatMul (h, wv)
    t = Transpose <perm = [0, 2, 1]> (k)
    s = MatMul (q, t)
    p = Softmax (s)
    m = MatMul (p, v)
    [out] y = MatMul (m, wo)
}"""
Quantize = Callable[..., Any]


def uneven(text: str, octaves: float, kept: slice = slice(None)) -> ir.Model:
    """A model with channels of unlike ranges, which computes what it did."""
    model = build(text)
    trace = trace_scales(model.graph)
    random = np.random.default_rng(1)
    spaces = scale_spaces(trace)[kept]
    rescale(
        model.graph,
        trace,
        {
            int(root): float(2 ** random.uniform(-octaves, octaves))
            for space in spaces
            for root in space.roots
        },
    )
    return model


@pytest.fixture
def quantize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quantize:
    """Quantize a model in a folder of its own, the current one."""
    monkeypatch.chdir(tmp_path)

    def call(model: ir.Model, run: str = "run", **settings: Any) -> Any:
        Path("model.onnx").write_bytes(serialize(model).content)
        shape = [size for size in model.graph.inputs[0].shape or () if isinstance(size, int)]
        samples = np.random.default_rng(0).standard_normal((48, *shape)).astype(np.float32)
        np.savez("calib.npz", x=samples)
        return ptq_cli.quantize("model.onnx", data="calib.npz", run=run, threads=1, **settings)

    return call


def sqnr(run: str) -> float:
    """Of new samples, the quantized model against the file that was given."""
    given = Session(Path("model.onnx"), threads=1)
    shape = [size if size is not None else 32 for size in given.inputs[0].shape]
    batch = {"x": np.random.default_rng(9).standard_normal(shape).astype(np.float32)}
    found = Session(RunDirectory(Path(run)).quantized_model, threads=1).run(batch)
    return sqnr_of([noise_of(given.run(batch), found)])


def test_a_network_with_uneven_channels_is_as_good_as_before_it_got_them(quantize: Quantize) -> None:
    quantize(build(BLOCKS), "even", recover=["none"])
    wanted = sqnr("even")
    quantize(uneven(BLOCKS, 5.0), "uneven", recover=["none"])
    assert sqnr("uneven") < wanted - 10
    found = quantize(uneven(BLOCKS, 5.0), "equalized", recover=["equalize"])
    assert sqnr("equalized") > wanted - 1
    (told,) = found.calibration.rescaled
    assert (told.rung, told.kept, told.possible, told.decided_by) == ("equalize", True, 4, 24)
    assert told.after > told.before + 10
    assert told.difference <= 1e-5
    assert set(told.strengths) <= {"stem", "depthwise", "project", "head"}


@pytest.mark.nightly
def test_activations_of_few_bits_gain_from_channels_that_are_little_apart(quantize: Quantize) -> None:
    model, few = uneven(BLOCKS, 0.8), {"activation_bits": 4, "amax": "mse"}
    quantize(model, "plain", recover=["none"], **few)
    (told,) = quantize(model, "equalized", recover=["equalize"], **few).calibration.rescaled
    assert told.kept and sqnr("equalized") > sqnr("plain") + 0.5


@pytest.mark.nightly
def test_smoothing_is_judged_by_ranges_that_are_found_at_each_run_where_these_are_written(quantize):
    model, settings = uneven(ATTENTION, 4.0), {"activation_mode": "dynamic", "prefer": "size"}
    quantize(model, "uneven", recover=["none"], **settings)
    wanted = sqnr("uneven")
    (told,) = quantize(model, "rows", recover=["smooth"], **settings).calibration.rescaled
    assert told.kept and sqnr("rows") > wanted + 10
    (measured,) = quantize(model, "ranges", recover=["smooth"]).calibration.rescaled
    assert abs(told.before - wanted) < 1 < abs(measured.before - wanted)


@pytest.mark.nightly
def test_channels_get_factors_by_default_where_ranges_are_found_at_each_run_if_it_surely_helps(
    quantize: Quantize, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ptq_cli.recover import rescale_model

    model, settings = uneven(ATTENTION, 4.0), {"activation_mode": "dynamic", "prefer": "size"}
    (told,) = quantize(model, "default", **settings).calibration.rescaled
    assert (told.rung, told.kept) == ("smooth", True)
    named = quantize(model, "named", recover=["equalize", "smooth"], **settings).export.output.read_bytes()
    assert RunDirectory(Path("default")).quantized_model.read_bytes() == named
    # A calibration with static ranges was made without it, and is exported all the same.
    quantize(model, "static")
    assert ptq_cli.export(run="static", **settings).output.exists()
    monkeypatch.setattr(rescale_model, "gain_interval", lambda *_noises: (-0.1, 9.0))
    assert not quantize(model, "unsure", **settings).calibration.rescaled


def test_the_float_model_computes_the_same_and_both_files_say_what_was_done(quantize: Quantize) -> None:
    found = quantize(uneven(BLOCKS, 5.0), recover=["equalize"])
    batch = {"x": np.random.default_rng(9).standard_normal((8, 4, 10, 10)).astype(np.float32)}
    wanted, given = (
        Session(Path(path), threads=1).run(batch)[0] for path in ("model.onnx", "run/model.float.onnx")
    )
    np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    (told,) = found.calibration.rescaled
    for name in ("model.float.onnx", "model_int8.onnx"):
        (item,) = json.loads(ir.load(Path("run") / name).metadata_props[MetadataKey.RESCALED])
        assert (item["rung"], item["kept"], item["sqnr_db"][1]) == ("equalize", True, round(told.after, 3))


@pytest.mark.nightly
def test_export_and_shards_and_threads_make_the_same_bytes(quantize: Quantize) -> None:
    first = quantize(uneven(BLOCKS, 5.0), recover=["equalize"]).export.output.read_bytes()
    other = ptq_cli.export(run="run", output="again.onnx", threads=2)
    assert other.output.read_bytes() == first
    runs = ["one", "two"]
    for number, run in enumerate(runs, 1):
        ptq_cli.calibrate(
            "model.onnx", data="calib.npz", recover=["equalize"], batch_size=7, shard=f"{number}/2", run=run
        )
    ptq_cli.merge(*runs, run="all")
    assert ptq_cli.export(run="all", output="merged.onnx").output.read_bytes() == first


def test_a_calibration_without_a_rung_is_not_exported_with_it(quantize: Quantize) -> None:
    quantize(uneven(BLOCKS, 5.0), recover=["none"])
    with pytest.raises(StaleCalibrationError, match="it was calibrated without") as raised:
        ptq_cli.export(run="run", recover=["equalize"])
    assert raised.value.hint == "run ptq_cli.calibrate(recover=['equalize']), or leave equalize out"
    assert ptq_cli.export(run="run", recover=["all"]).recovery is not None


def test_what_makes_the_output_worse_is_not_kept(quantize: Quantize, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptq_cli.recover import rescale_model

    plain = quantize(uneven(BLOCKS, 5.0), recover=["none"]).export.output.read_bytes()
    monkeypatch.setattr(rescale_model, "sqnr_of", lambda noises, seen=[]: -float(len(seen.append(1) or seen)))
    found = quantize(uneven(BLOCKS, 5.0), "worse", recover=["equalize"])
    (told,) = found.calibration.rescaled
    assert (told.kept, told.groups > 0) == (False, True)
    assert found.export.output.read_bytes() == plain


def test_the_command_says_what_it_did_and_what_not(folder: Path, ptq: Any) -> None:
    outcome = ptq("calibrate model.onnx --data calib.npz --set recovery.rungs=equalize,smooth --run new")
    assert outcome.status == 0, outcome
    assert "note: smooth changed nothing: the model has no channels that it could change" in outcome.out
    told = json.loads(
        ptq("calibrate model.onnx --data calib.npz --set recovery.rungs=equalize --run new --json").out
    )
    assert [item["rung"] for item in told["rescaled"]] == ["equalize"]
    few = ptq("calibrate model.onnx --data calib.npz --samples 1 --set recovery.rungs=equalize --run few")
    assert "note: equalize changed nothing: it needs at least 2 samples" in few.out
    words = "--set weights.quantizer=centers --set weights.centers=4 --set recovery.rungs=equalize --run c"
    centers = ptq(f"quantize model.onnx --data calib.npz {words}")
    assert "note: equalize changed nothing: the quantizer of the weights has no evenly spaced" in centers.out


def test_a_gain_that_may_be_chance_is_kept_where_it_was_asked_for_and_told(
    quantize: Quantize, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ptq_cli.recover import rescale_model

    monkeypatch.setattr(rescale_model, "gain_interval", lambda *_outputs: (-0.4, 1.6))
    (told,) = quantize(uneven(BLOCKS, 5.0), recover=["equalize"]).calibration.rescaled
    assert told.kept, told
    assert told.describe().endswith("a gain of -0.4 to 1.6 dB with 95 % confidence"), told.describe()
    assert not quantize(uneven(BLOCKS, 5.0), "default").calibration.rescaled, "nobody asked for it"
    monkeypatch.setattr(rescale_model, "_SAME", -1.0)
    (told,) = quantize(uneven(BLOCKS, 5.0), "changed", recover=["equalize"]).calibration.rescaled
    assert not told.kept


def test_the_metric_that_the_recipe_limits_decides_before_the_sqnr(
    quantize: Quantize, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ptq_cli.recover import rescale_model

    quantize(uneven(BLOCKS, 5.0), "plain", recover=["none"])
    samples = np.load("calib.npz")["x"]
    Path("gate.toml").write_text("[gate]\nmax_ratio = { mse = 1.02 }\n")
    told = []
    # Labels are what the model without factors says, or what the float model does.
    for path in ("plain/model_int8.onnx", "model.onnx"):
        labels = Session(Path(path), threads=1).run({"x": samples})[0]
        np.savez("labeled.npz", x=samples, label=labels)
        words = {"recipe": "gate.toml", "data": "labeled.npz", "threads": 1, "run": "gated"}
        (item,) = ptq_cli.calibrate("model.onnx", recover=["equalize"], **words).rescaled
        told.append(item)
    lost, won = told
    assert lost.gain[0] > 10 and not lost.kept and won.kept
    assert "it did not help, so it was not kept (mse from " in lost.describe(), lost.describe()
    assert "a loss of" in lost.describe() and "groups of channels; mse from" in won.describe()
    (item,) = json.loads(ir.load("gated/model.float.onnx").metadata_props[MetadataKey.RESCALED])
    assert item["metric"]["name"] == "mse" and item["metric"]["gain"][0] > 0
    # What nobody asked for is kept, too, though its decibels may be chance.
    monkeypatch.setattr(rescale_model, "gain_interval", lambda *_noises: (-0.4, 1.6))
    (item,) = ptq_cli.calibrate("model.onnx", **words).rescaled
    assert item.kept and item.metric.is_sure
