"""Channels, and what is not finite, of tensors that come in batches."""

import numpy as np
import pytest

from ptq_cli.collectors.collector_registry import COLLECTORS
from ptq_cli.collectors.tensor_statistics import NonFinite
from ptq_cli.core.errors import ActivationAxisError
from ptq_cli.runtime.tapping.pieces import Forward, ForwardPass
from tests.each_case import each_case
from tests.unit.calibration.test_collect import batches, collect, saved

RNG = np.random.default_rng(23)
IMAGES = RNG.normal(size=(12, 3, 6, 6)).astype(np.float32)


def model(inputs):
    """conv, relu, and the logarithm of relu, which is -inf where relu is 0."""
    conv = inputs["x"] * np.float32([1, 30, -0.1])[:, None, None]
    relu = np.maximum(conv, 0)
    with np.errstate(divide="ignore"):
        return [conv, relu, np.log(relu)]


def run_collect(images=IMAGES, size=4, log=False, method="histogram", threads=1, **rest):
    taps = ("conv", "relu", "log")[: 3 if log else 2]
    return collect(
        lambda inputs: model(inputs)[: len(taps)],
        batches(images, size),
        inputs=["x"],
        taps=taps,
        method=method,
        threads=threads,
        **rest,
    )


AXES = {"conv": 1, "relu": -3, "x": 1}


@each_case("size", [1, 5, 12], ids=lambda size: f"batches of {size}")
@each_case("threads", [1, 3], ids=lambda threads: f"{threads} threads")
@each_case("method", COLLECTORS)
def test_channels_are_counted_alike_in_any_batches_and_from_a_checkpoint(method, size, threads):
    whole = run_collect(method=method, axes=AXES)
    first, _ = run_collect(images=IMAGES[:5], size=size, method=method, axes=AXES)
    cut = run_collect(size=size, threads=threads, method=method, axes=AXES)
    rest, _ = run_collect(images=IMAGES[5:], size=size, method=method, axes=AXES, initial=first)

    assert saved(cut) == saved(whole) == saved((rest, 12))
    channels = whole[0]["relu"].channels
    assert (channels.axis, channels.size) == (1, 3)
    relu = model({"x": IMAGES})[1]
    assert channels.maximum.tolist() == relu.max(axis=(0, 2, 3)).tolist()


def test_channels_are_counted_in_the_model_order():
    plain = RNG.normal(size=(12, 3, 4)).astype(np.float32)
    turned = ForwardPass(
        taps=("a", "b"), run=lambda _: [plain.transpose(0, 2, 1).copy()] * 2, in_model_order=back
    )

    found, _ = collect(
        Forward((turned,)),
        batches(IMAGES, 12),
        inputs=[],
        taps=["a", "b"],
        method="max",
        threads=1,
        axes={"a": 1},
    )

    assert found["a"].channels.maximum.tolist() == plain.max(axis=(0, 2)).tolist()
    assert found["b"].channels is None and found["b"].high == plain.max()


def back(name, array):
    return array.transpose(0, 2, 1)


def test_what_is_not_finite_is_counted_where_that_is_allowed():
    found, samples = run_collect(log=True, size=5, allow_nonfinite=True)

    dead = np.count_nonzero(model({"x": IMAGES})[1] == 0)
    assert samples == 12
    assert found["log"].nonfinite == NonFinite(negative=dead)
    assert found["log"].count == found["conv"].count - dead
    assert saved((found, 12)) == saved(run_collect(log=True, size=12, threads=3, allow_nonfinite=True))


def test_a_length_that_changes_names_the_tensor():
    def run(inputs):
        length = 4 if len(inputs["x"]) == 5 else 3
        return [np.ones((len(inputs["x"]), length), np.float32)]

    with pytest.raises(ActivationAxisError) as caught:
        collect(run, batches(IMAGES, 5), inputs=[], taps=["t"], method="max", threads=2, axes={"t": -1})

    assert caught.value.message == "axis 1 of tensor 't' had 4 channels and now has 3"
