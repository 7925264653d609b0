"""A tiny ONNX model, run through sessions and taps, and counted."""

import threading
import weakref

import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batches import Batch, cut
from ptq_cli.calibration.collect import CountedTensors
from ptq_cli.calibration.collect import collect as collect_all
from ptq_cli.calibration.count_batches import Counting
from ptq_cli.collectors.calibration_file import Calibration, Provenance, calibration_bytes
from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.collectors.tensor_statistics import NonFinite
from ptq_cli.core.errors import NonFiniteActivationError, UnknownNameError
from ptq_cli.core.progress import Progress
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.pieces import Forward, ForwardPass
from ptq_cli.runtime.tapping.tapped import TappedModel
from ptq_cli.runtime.tapping.taps import tap
from tests.each_case import each_case
from tests.unit.plan.graphs import build

RNG = np.random.default_rng(23)
IMAGES = RNG.normal(size=(12, 2, 6, 6)).astype(np.float32)
WEIGHT = RNG.normal(size=(3, 2, 3, 3)).astype(np.float32)


def collect(run, batches, *, threads, **options):
    """Statistics and samples; options of what is counted and of how it is are told apart by their names."""
    how = {name: options.pop(name) for name in list(options) if name in Counting.__dataclass_fields__}
    statistics, _, samples = collect_all(run, batches, CountedTensors(**options), threads, Counting(**how))
    return statistics, samples


def make_model():
    """The logarithm of a zero is -inf."""
    text = """(float[n,2,6,6] x) => (float[n,3,4,4] log) <float[3,2,3,3] w> {
        conv = Conv(x, w) relu = Relu(conv) log = Log(relu) }"""
    return build(text, constants={"w": WEIGHT})


def batches(images, size):
    for start in range(0, len(images), size):
        part = images[start : start + size]
        yield Batch({"x": part}, None, tuple(f"s{start + index}" for index in range(len(part))))


def run_collect(images=IMAGES, size=4, taps=("conv", "relu"), method="histogram", threads=1, **rest):
    session = Session(tap(make_model(), taps), threads=threads)
    return collect(
        session.run, batches(images, size), inputs=["x"], taps=taps, method=method, threads=threads, **rest
    )


def direct_conv(images):
    windows = np.lib.stride_tricks.sliding_window_view(images.astype(np.float64), (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, WEIGHT.astype(np.float64))


@pytest.mark.parametrize("method", COLLECTORS)
def test_statistics_are_those_of_the_tensors(method):
    statistics, samples = run_collect(method=method)

    conv = direct_conv(IMAGES)
    assert samples == 12
    assert list(statistics) == ["x", "conv", "relu"]
    assert statistics["x"].count == IMAGES.size
    assert (statistics["x"].low, statistics["x"].high) == (IMAGES.min(), IMAGES.max())
    assert (statistics["conv"].low, statistics["conv"].high) == pytest.approx(
        (conv.min(), conv.max()), rel=1e-5
    )
    assert statistics["relu"].low == 0
    assert statistics["relu"].high == statistics["conv"].high
    assert statistics["relu"].count == statistics["conv"].count == conv.size


def test_histogram_holds_each_tensor():
    statistics, _ = run_collect()

    collector = make_collector("histogram")
    collector.update(IMAGES)
    assert statistics["x"] == collector.statistics()
    assert statistics["relu"].zeros == np.count_nonzero(direct_conv(IMAGES) <= 0)


@each_case("threads", [1, 2])
@each_case("method", COLLECTORS)
def test_tensors_of_one_memory_are_counted_together(method, threads, monkeypatch):
    """Only the inputs come one by one, and the statistics are the same."""
    taps, alone = ("conv", "relu"), []
    kind = COLLECTORS[method]
    update = kind.update
    monkeypatch.setattr(kind, "update", lambda self, array: alone.append(array.shape) or update(self, array))
    expected, _ = run_collect(method=method)
    alone.clear()
    forward = TappedModel(tap(make_model(), taps), taps, threads=threads).forward()

    found, _ = collect(forward, batches(IMAGES, 1), inputs=["x"], taps=taps, method=method, threads=threads)

    assert found == expected
    assert alone == [(1, 2, 6, 6)] * len(IMAGES)


class Always:
    """Wants the statistics after each batch."""

    def __init__(self):
        self.taken = []

    def is_due(self):
        return True

    def write(self, batches, samples, snapshot):
        self.taken.append((batches, samples, snapshot()))


def saved(result):
    statistics, samples = result
    return calibration_bytes(
        Calibration(
            Provenance(model="", source="", data="", settings={}, flags={}, method="", samples=samples),
            statistics,
        )
    )


@each_case("size", [1, 3, 5, 12], ids=lambda size: f"batches of {size}")
@each_case("threads", [1, 3], ids=lambda threads: f"{threads} threads")
@each_case("method", COLLECTORS)
def test_batch_size_and_threads_leave_the_bytes_as_they_are(method, size, threads):
    assert saved(run_collect(size=size, threads=threads, method=method)) == saved(run_collect(method=method))
    backwards = run_collect(images=IMAGES[::-1].copy(), size=size, method=method)
    assert saved(backwards) == saved(run_collect(method=method))


def test_message_names_the_first_tensor_and_the_sample():
    first = int(np.argmax((direct_conv(IMAGES) <= 0).any(axis=(1, 2, 3))))

    with pytest.raises(NonFiniteActivationError) as caught:
        run_collect(taps=("conv", "relu", "log"), size=5)

    assert caught.value.code == "PTQ-CALIB-001"
    assert caught.value.message.startswith(f"tensor 'log' is -inf at [{first}, ")
    assert caught.value.message.endswith(f"for sample 's{first}'")
    assert "fix the model, leave the sample out" in caught.value.hint


@pytest.mark.parametrize("method", COLLECTORS)
def test_what_was_counted_before_is_merged(method):
    whole, _ = run_collect(method=method)
    first, _ = run_collect(images=IMAGES[:8], method=method)
    rest, samples = run_collect(images=IMAGES[8:], method=method, initial=first)

    assert rest == whole
    assert samples == 4


@pytest.mark.parametrize("start", [0, 4], ids=["from the start", "after earlier batches"])
def test_a_snapshot_holds_all_batches_so_far(start):
    initial = run_collect(images=IMAGES[:start])[0] if start else None
    checkpoints = Always()
    run_collect(images=IMAGES[start:], initial=initial, checkpoints=checkpoints)

    sizes = range(4, len(IMAGES) - start + 1, 4)
    expected = [run_collect(images=IMAGES[: start + size])[0] for size in sizes]
    assert checkpoints.taken == [(size // 4, size, item) for size, item in zip(sizes, expected, strict=True)]


def at_sample_7(inputs, value):
    """Put a value where the seventh sample is."""
    return np.where(inputs["x"][:, :1, 0, 0] == IMAGES[7, 0, 0, 0], value, 0).astype(np.float32)


ROW_BY_ROW = {"at_once": 2, "split": lambda batch: [cut(batch, row, row + 1) for row in range(batch.size)]}


@each_case(
    "run, split, says",
    [
        (lambda inputs: at_sample_7(inputs, np.nan), {}, "is nan at [2, 0] for sample 's7'"),
        (lambda inputs: at_sample_7(inputs, -np.inf), {}, "is -inf at [2, 0] for sample 's7'"),
        (lambda inputs: at_sample_7(inputs, np.inf), ROW_BY_ROW, "is inf at [2, 0] for sample 's7'"),
        (lambda inputs: at_sample_7(inputs, np.nan).max(), {}, "is nan at [] for the batch of 's5'"),
        (lambda inputs: np.full(len(inputs["x"]), 1e39), {}, "is 1e+39 at [0] for sample 's0'"),
    ],
)
def test_message_says_which_value_stands_where(run, split, says):
    forward = Forward((ForwardPass(taps=("bad",), run=lambda inputs: [run(inputs)]),), **split)
    with pytest.raises(NonFiniteActivationError) as caught:
        collect(forward, batches(IMAGES, 5), inputs=[], taps=["bad"], method="histogram", threads=2)
    assert caught.value.message == f"tensor 'bad' {says}"


def test_no_samples_or_tensors_give_no_values_and_a_missing_tensor_is_an_error():
    statistics, samples = run_collect(images=IMAGES[:0])
    assert samples == 0
    assert [item.count for item in statistics.values()] == [0, 0, 0]
    none = {"inputs": [], "method": "max", "threads": 1}
    assert collect(lambda inputs: [], batches(IMAGES, 4), taps=[], **none)[0] == {}
    with pytest.raises(ValueError, match="zip"):
        collect(lambda inputs: [], batches(IMAGES, 4), taps=["a"], **none)


def test_unknown_method_is_refused_before_anything_runs():
    def run(inputs):
        raise AssertionError("the model ran")

    with pytest.raises(UnknownNameError, match="unknown method 'median'"):
        collect(run, batches(IMAGES, 4), inputs=[], taps=["a"], method="median", threads=1)


@pytest.mark.parametrize("total", [12, None])
def test_progress_is_told_after_each_batch(total):
    told = []

    run_collect(size=5, total=total, progress=told.append)

    assert told == [Progress("calibrate", done, total) for done in (0, 5, 10, 12)]


def test_one_batch_of_tensors_is_held_at_a_time():
    alive = []

    def run(inputs):
        assert [reference() for reference in alive] == [None] * len(alive)
        arrays = [np.ones((4, 10), np.float32), np.ones((4, 20), np.float32)]
        alive.extend(weakref.ref(array) for array in arrays)
        return arrays

    collect(run, batches(IMAGES, 4), inputs=[], taps=["a", "b"], method="histogram", threads=1)

    assert len(alive) == 6


def test_tensors_are_counted_side_by_side():
    together = threading.Barrier(2, timeout=200)
    met = []

    class Waiting:
        def __init__(self, name):
            self.names = [name]

        def feed(self, arrays, shared):
            met.append(together.wait())  # Breaks if the other tensor is not being counted meanwhile.
            return []

        def statistics(self):
            return {self.names[0]: None}

    collect(
        lambda inputs: [np.ones(4, np.float32)] * 2,
        batches(IMAGES[:1], 1),
        inputs=[],
        taps=["a", "b"],
        method="max",
        threads=2,
        make_tapped=lambda names, *_rest: [Waiting(name) for name in names],
    )

    assert sorted(met) == [0, 1]


@each_case("at_once", [1, 2, 3])
@each_case("piece", [1, 2, 4])
def test_pieces_leave_the_bytes_and_the_reports_as_they_are(at_once, piece):
    def split(batch):
        return [cut(batch, start, min(start + piece, batch.size)) for start in range(0, batch.size, piece)]

    session, told, checkpoints = Session(tap(make_model(), ("conv", "relu")), threads=1), [], Always()
    found = collect(
        Forward((ForwardPass(taps=("conv", "relu"), run=session.run),), at_once, split),
        batches(IMAGES, 5),
        inputs=["x"],
        taps=("conv", "relu"),
        method="histogram",
        threads=2,
        progress=told.append,
        checkpoints=checkpoints,
    )

    assert saved(found) == saved(run_collect())
    assert told == [Progress("calibrate", done, None) for done in (0, 5, 10, 12)]
    # A snapshot holds the batches that were told of, and nothing of later ones.
    counts = [(number, samples, statistics["x"].count) for number, samples, statistics in checkpoints.taken]
    assert counts == [(1, 5, 5 * 72), (2, 10, 10 * 72), (3, 12, 12 * 72)]


@pytest.mark.parametrize("at_once", [1, 2])
def test_passes_leave_the_bytes_and_the_reports_as_they_are(at_once):
    sessions = {name: Session(tap(make_model(), (name,)), threads=1) for name in ("conv", "relu")}
    passes, told = tuple(ForwardPass(taps=(name,), run=session.run) for name, session in sessions.items()), []

    found = collect(
        Forward(passes, at_once),
        batches(IMAGES, 5),
        inputs=["x"],
        taps=("conv", "relu"),
        method="histogram",
        threads=2,
        progress=told.append,
    )

    assert saved(found) == saved(run_collect())
    assert [progress.done for progress in told] == [0, 5, 10, 12]


def test_what_is_not_finite_is_counted_where_that_is_allowed():
    taps = ("conv", "relu", "log")
    found = run_collect(taps=taps, size=5, allow_nonfinite=True)

    statistics, samples = found
    dead = statistics["relu"].zeros
    assert samples == 12 and dead > 0
    assert statistics["log"].nonfinite == NonFinite(negative=dead)
    assert statistics["log"].count == statistics["conv"].count - dead
    assert saved(found) == saved(run_collect(taps=taps, size=12, threads=3, allow_nonfinite=True))
