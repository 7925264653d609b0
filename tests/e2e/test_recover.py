"""``--recover``: weights chosen again from the calibration data, from the command line to the file."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ptq_cli
from ptq_cli.core import process
from ptq_cli.core.progress import Progress, RungProgress, silent
from ptq_cli.models.files.stored import serialize
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recover import recover_rounding as recovering
from tests.own_process import own_process
from tests.unit.plan.graphs import build

CONVOLUTIONS = """(float[n, 4, 10, 10] x) => (float[n, 5] y)
    <float[12, 4, 3, 3] w1, float[12] b1, float[12, 1, 3, 3] w2, float[12] b2, float[8, 6, 3, 3] w3,
     float[8] b3, float[8, 12, 1, 1] w4, float[8, 5, 2, 2] w5>
{
    [dense] c1 = Conv <pads=[1, 1, 1, 1]> (x, w1, b1)
    r1 = Relu (c1)
    [depthwise] c2 = Conv <pads=[1, 1, 1, 1], strides=[2, 2], group=12> (r1, w2, b2)
    r2 = Relu (c2)
    [grouped] c3 = Conv <pads=[2, 2, 2, 2], dilations=[2, 2], group=2> (r2, w3, b3)
    [skip] c4 = Conv <strides=[1, 1]> (r2, w4)
    sum = Add (c3, c4)
    [wider] c5 = ConvTranspose <strides=[2, 2]> (sum, w5)
    pool = GlobalAveragePool (c5)
    y = Flatten (pool)
}"""
SEQUENCES = """(float[n, 6, 16] x) => (float[n, 6, 8] y)
    <float[16, 32] w1, float[32] b1, float[32, 16] w2, float[16, 8] w3>
{
    [up] m1 = MatMul (x, w1)
    [up_bias] a1 = Add (m1, b1)
    act = Relu (a1)
    [down] m2 = MatMul (act, w2)
    stream = Add (m2, x)
    [out] y = MatMul (stream, w3)
}"""
ARRAYS = {"convolutions": (CONVOLUTIONS, (4, 10, 10)), "sequences": (SEQUENCES, (6, 16))}
LAYERS = {
    "convolutions": ["dense", "depthwise", "grouped", "skip", "wider"],
    "sequences": ["up", "down", "out"],
}
QUANTIZERS: dict[str, dict[str, Any]] = {
    "4 bits": {"weight_bits": 4},
    "2 bits": {"weight_bits": 2},
    "8 bits": {"weight_bits": 8},
    "4 bits of both": {"weight_bits": 4, "activation_bits": 4},
    "one scale": {"weight_bits": 4, "weight_granularity": "tensor"},
    "powers of two": {"weight_quantizer": "fixed_point", "weight_bits": 4},
    "blocks": {"weight_bits": 3, "weight_block_size": 4},
}
Quantize = Callable[..., Any]
CHECKPOINT = "recovery.round.partial.safetensors"


def correlated(shape: tuple[int, ...], count: int, seed: int = 0) -> np.ndarray:
    """Samples whose channels vary together, which rounding one by one cannot make up for."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal((count, *shape)).astype(np.float32)
    return (noise + 2 * noise.mean(axis=1, keepdims=True) + 0.5).astype(np.float32)


@pytest.fixture
def quantize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quantize:
    """Quantize a model in a folder of its own, the current one, with ``recover`` unless told not to."""
    monkeypatch.chdir(tmp_path)

    def call(text: str, shape: tuple[int, ...], run: str = "run", **settings: Any) -> Any:
        (tmp_path / "model.onnx").write_bytes(serialize(build(text)).content)
        np.savez(tmp_path / "calib.npz", x=correlated(shape, 80))
        settings = {"recover": ["round"], "amax": "max", "threads": 1, "latency": False, **settings}
        return ptq_cli.quantize("model.onnx", data="calib.npz", run=run, **settings).export

    return call


@pytest.mark.parametrize(
    ("kind", "quantizer"),
    [
        *(("convolutions", name) for name in ("8 bits", "4 bits of both", "one scale")),
        ("sequences", "2 bits"),
        *(pytest.param("sequences", name, marks=pytest.mark.nightly) for name in ("powers of two", "blocks")),
    ],
)
def test_every_layer_s_error_falls_and_the_output_gains(quantize, kind, quantizer):
    text, shape = ARRAYS[kind]
    result = quantize(text, shape, **QUANTIZERS[quantizer])
    (found,) = result.recovery.effects
    assert list(found.layers) == LAYERS[kind]
    assert found.refused == {}
    assert all(item.after <= item.before * (1 + 1e-9) for item in found.layers.values())
    # With 8 bits nearly all the noise is that of the activations.
    assert found.kept or quantizer == "8 bits"
    assert found.kept == (found.after > found.before)
    least = 0.9 if quantizer == "4 bits of both" else 1.0  # What few steps of activations lose is lost.
    assert quantizer == "8 bits" or found.after > found.before + least
    assert (found.samples, found.decided_by) == (70, 30)


# Of an odd number of channels, so that pairs of the two orders differ.
UPWARDS = """(float[n, 3, 8, 8] x) => (float[n, 4, 17, 17] y)
    <float[6, 3, 3, 3] w1, float[6, 4, 3, 3] w2>
{
    [conv] c1 = Conv <pads=[1, 1, 1, 1]> (x, w1)
    r1 = Relu (c1)
    [up] y = ConvTranspose <strides=[2, 2]> (r1, w2)
}"""


@pytest.mark.parametrize("orders", ["across", "restart"])
def test_a_search_keeps_the_pairs_of_every_order_and_operator(quantize, tmp_path, orders):
    # Of the generic target, which stores the weight of a ConvTranspose as integers.
    (tmp_path / "own.toml").write_text(
        f"name = 'own'\ndescription = 'd'\nextends = 'generic'\nweight.pair_orders = ['{orders}']\n"
    )
    result = quantize(UPWARDS, (3, 8, 8), target="./own.toml")
    (found,) = result.recovery.effects
    assert set(found.layers) == {"conv", "up"} and found.changed


def test_the_file_holds_what_was_measured_and_keeps_its_grid(quantize: Quantize) -> None:
    text, shape = ARRAYS["convolutions"]
    result = quantize(text, shape, weight_bits=4)
    model = ir.load(result.output)
    (told,) = json.loads(model.metadata_props[MetadataKey.RECOVERY])
    (effect,) = result.recovery.effects
    assert told["kept"] is True
    assert told["rung"] == "round"
    assert told["sqnr_db"] == [round(effect.before, 3), round(effect.after, 3)]
    assert list(told["layers"]) == LAYERS["convolutions"]
    weight = next(value for name, value in model.graph.initializers.items() if name == "w1.quantized")
    integers = weight.const_value.numpy().astype(np.int64)  # type: ignore[union-attr]
    assert weight.dtype == ir.DataType.INT4
    assert (integers.min(), integers.max()) >= (-7, -7)
    assert integers.max() <= 7
    # The output on the samples that judge is what was told, when the file runs as a whole.
    from ptq_cli.recover.output_noise import noise_of, sqnr_of
    from ptq_cli.runtime.session import Session

    samples = correlated(shape, 80)[[*range(7, 57, 8), *range(57, 80)]]
    wanted = Session(Path("run/model.float.onnx"), threads=1).run({"x": samples})
    given = Session(result.output, threads=1).run({"x": samples})
    assert sqnr_of([noise_of(wanted, given)]) == pytest.approx(effect.after, abs=0.2)


def test_threads_and_memory_and_batches_change_no_byte_and_export_equals_quantize(quantize, monkeypatch):
    text, shape = ARRAYS["convolutions"]
    first = quantize(text, shape, weight_bits=4).output.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(recovering, "IN_MEMORY", 1000)
        other = quantize(text, shape, run="b", weight_bits=4, threads=2, batch_size=7)
    assert other.output.read_bytes() == first
    plain = quantize(text, shape, run="c", recover=["none"])
    assert plain.recovery is None
    assert plain.output.read_bytes() != first
    steps: list[Progress] = []
    again = ptq_cli.export(run="c", recover=["round"], weight_bits=4, threads=1, progress=steps.append)
    assert again.output.read_bytes() == first
    last = [step for step in steps if isinstance(step, RungProgress)][-1]
    assert (last.number, last.done) == (5, last.total)


def test_what_makes_the_output_worse_is_not_kept(quantize, monkeypatch, capfd):
    text, shape = ARRAYS["sequences"]
    plain = onnx.load(quantize(text, shape, recover=[]).output)
    worse = recovering.recover_rounding

    def reversed_gain(*arguments: Any, **settings: Any) -> Any:
        from dataclasses import replace

        found = worse(*arguments, **settings)
        return replace(found, before=found.after, after=found.before)

    monkeypatch.setattr(recovering, "recover_rounding", reversed_gain)
    result = quantize(text, shape)
    assert not result.recovery.kept
    assert onnx.load(result.output).graph == plain.graph
    assert json.loads(ir.load(result.output).metadata_props[MetadataKey.RECOVERY])[0]["kept"] is False
    from ptq_cli.shown.export_lines import recovery_lines

    (line,) = recovery_lines(result.recovery)
    assert line.startswith(
        "note: nothing was recovered (round): it did not help, so it was not kept (output SQNR from"
    )


def test_a_layer_that_does_not_hold_on_the_samples_set_aside_stays_as_it_is(tmp_path, quantize):
    text, shape = ARRAYS["sequences"]
    quantize(text, shape, recover=[])
    x = correlated(shape, 80)
    x[7::8] = 0.0  # What is learned of the mean of the others is wrong here.
    np.savez(tmp_path / "calib.npz", x=x)
    result = ptq_cli.quantize("model.onnx", data="calib.npz", run="b", recover=["round"], weight_bits=4)
    (found,) = result.export.recovery.effects
    assert found.refused["up"] == "the error on the held-out samples did not fall"
    assert "up" not in found.layers


def test_a_fixed_batch_is_run_whole(quantize: Quantize) -> None:
    text = CONVOLUTIONS.replace("float[n,", "float[8,")
    ranges = quantize(text, (4, 10, 10), recover=["all"]).ranges
    assert (ranges.samples, ranges.decided_by) == (16, 32)


def test_a_pass_that_changed_nothing_says_so(quantize: Quantize) -> None:
    # One input, and weights that are powers of two: no other integers are as near.
    text = "(float[n, 1] x) => (float[n, 2] y) <float[1, 2] w = {64, 127}> { [only] y = MatMul (x, w) }"
    recovery = quantize(text, (1,), weight_granularity="tensor").recovery
    (found,) = recovery.effects
    assert (list(found.layers), found.changed, found.kept) == (["only"], False, False)
    from ptq_cli.shown.export_lines import recovery_lines

    (line,) = recovery_lines(recovery)
    assert line == "note: nothing was recovered (round): no better integers, scales or biases were found"


def test_layers_that_cannot_be_recovered_say_why(quantize: Quantize) -> None:
    shared = """(float[n, 6] x) => (float[n, 6] y) <float[6, 6] w, float[6, 6] v> {
        [one] a = MatMul (x, w)
        [two] b = MatMul (a, w)
        [three] y = MatMul (b, v)
    }"""
    (found,) = quantize(shared, (6,), weight_bits=4).recovery.effects
    assert list(found.layers) == ["three"]
    assert set(found.refused) == {"one", "two"}
    assert "several layers share" in found.refused["one"]
    (centers,) = quantize(shared, (6,), weight_quantizer="centers", weight_centers=4).recovery.effects
    assert not centers.kept
    assert set(centers.refused.values()) == {"the quantizer has no evenly spaced integers"}


def test_few_samples_are_noted_and_too_few_are_refused(folder: Path, ptq: Any, refuse: Any) -> None:
    outcome = ptq("quantize model.onnx --data calib.npz --samples 2 --recover all --weight-bits 4 --run few")
    assert outcome.status == 0, outcome
    assert "(fc) had fewer rows of data than inputs: more samples may help" in outcome.out
    assert "dB on 1 sample" in outcome.out
    refuse(
        "quantize model.onnx --data calib.npz --samples 1 --set recovery.rungs=round",
        "PTQ-RECOVERY-001",
        "found 1",
    )


def test_wrong_names_and_changed_data_are_refused(folder: Path, ptq: Any, refuse: Any) -> None:
    refuse("export --set recovery.rungs=rund", "PTQ-RECIPE-004", "did you mean 'round'?")
    refuse(
        "export --recover round,ranges",
        "PTQ-USAGE-001",
        "not the name of a rung",
        hint="recovery.rungs=round,ranges",
    )
    refuse(
        "export --set recovery.rungs=none,round",
        "PTQ-RECIPE-003",
        "'none' cannot be combined with other rungs",
    )
    refuse("export --recover al", "PTQ-RECIPE-004", "did you mean 'all'?")
    arrays = dict(np.load(folder / "calib.npz"))
    np.savez(folder / "calib.npz", **{**arrays, "x": arrays["x"] + 1})
    refuse("export --set recovery.rungs=round", "PTQ-CALIB-003", "has changed since it was calibrated")
    (folder / "calib.npz").unlink()
    refuse("export --set recovery.rungs=round", "PTQ-FILE-001", "calib.npz")
    assert ptq("export").status == 0


@pytest.mark.nightly
@own_process
def test_ctrl_c_ends_the_recovery_with_what_it_has_found(quantize: Quantize, monkeypatch) -> None:
    monkeypatch.setattr(process, "_OWN", [True])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's job in the background ignores it.
    monkeypatch.setattr(recovering, "seconds_of", lambda *_: 1500.0)
    told: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        told.append(progress)
        if isinstance(progress, RungProgress) and progress.number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    settings = {"weight_bits": 4, "recover": ["round"], "progress": interrupt}
    exported = quantize(*ARRAYS["convolutions"], **settings)
    (effect,) = exported.recovery.effects
    assert (list(effect.layers), effect.kept, exported.output.is_file()) == (
        ["dense", "depthwise"],
        True,
        True,
    )
    assert effect.after > effect.before
    notes = [item.note for item in told if item.note]
    assert notes == [
        "choosing the weights takes about 25 min; --recover none leaves it out",
        "Ctrl-C ended the recovery; what was found until then is kept if it helps, "
        "and the same command continues",
    ]
    told.clear()
    again = quantize(*ARRAYS["convolutions"], **{**settings, "progress": told.append})
    assert "continuing an earlier recovery after 2 of 5 layers; --set run.restart=true starts again" in [
        item.note for item in told
    ]
    whole = quantize(*ARRAYS["convolutions"], run="whole", **{**settings, "progress": silent})
    assert again.output.read_bytes() == whole.output.read_bytes()
    assert not (again.output.parent / CHECKPOINT).exists()


@pytest.mark.nightly
@own_process
def test_ctrl_c_ends_ranges_with_what_was_measured(quantize: Quantize, monkeypatch) -> None:
    monkeypatch.setattr(process, "_OWN", [True])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    notes: list[str] = []

    def interrupt(progress: Progress) -> None:
        notes.append(progress.note)
        if progress.stage == "ranges" and progress.done == 1:
            os.kill(os.getpid(), signal.SIGINT)

    settings = {"amax": "percentile", "percentile": 90.0, "recover": ["ranges", "float", "round"]}
    exported = quantize(*ARRAYS["convolutions"], **settings, progress=interrupt)
    assert exported.ranges.kept
    assert exported.ranges.after > exported.ranges.before + 10
    assert (exported.float_layers, exported.recovery) == (None, None)
    assert [note for note in notes if note] == [
        "Ctrl-C ended the recovery; what was found until then is kept if it helps"
    ]


@pytest.mark.parametrize(
    "then",
    ["", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("other bits", "damaged", "restart"))],
)
def test_a_killed_recovery_continues(quantize: Quantize, then: str) -> None:
    """To the same bytes; a checkpoint of other settings, or a damaged one, is not taken."""
    settings = {"weight_bits": 4, "checkpoint_every": 0.0}
    whole = quantize(*ARRAYS["convolutions"], run="whole", **settings)
    notes: list[str] = []

    def killed(progress: Progress) -> None:
        if isinstance(progress, RungProgress) and progress.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(*ARRAYS["convolutions"], **settings, progress=killed)
    file = whole.output.parent.parent / "run" / CHECKPOINT
    if then == "damaged":
        file.write_bytes(file.read_bytes()[:-4] + b"abcd")
    settings |= {"other bits": {"weight_bits": 5}, "restart": {"restart": True}}.get(then, {})
    found = quantize(*ARRAYS["convolutions"], **settings, progress=lambda step: notes.append(step.note))
    said = {
        "": f"continuing an earlier recovery after 2 of {len(LAYERS['convolutions'])} layers",
        "other bits": f"'{file}', but starting again: the recipe changed since",
        "damaged": "but starting again",
        "restart": "",
    }
    assert said[then] in "\n".join(notes)
    assert ("recovery" in "\n".join(notes)) is (then != "restart")
    assert (found.output.read_bytes() == whole.output.read_bytes()) is (then != "other bits")
    assert not file.exists()
