"""Whatever bytes stand in a calibration file: the calibration that was saved, or an error that says so."""

import copy
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from ptq_cli.amax.decide import decide
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.collectors import calibration_file as artifact
from ptq_cli.collectors.calibration_file import Calibration, Provenance, calibration_bytes, load_calibration
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.collectors.flat_statistics import flatten
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.collectors.tensor_statistics import from_values
from ptq_cli.core.errors import CalibrationFileError, MissingStatisticError
from ptq_cli.core.formats import UINT8
from ptq_cli.recipe.sections import AmaxSettings

RNG = np.random.default_rng(29)
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def statistics_of(collector, array):
    assert collector.update(array)
    return collector.statistics()


VALUES = RNG.normal(size=(8, 3)).astype(np.float32)
PROVENANCE = Provenance(
    model="a" * 64,
    source="b" * 64,
    data="c" * 64,
    settings={"image.mode": "'RGB'"},
    flags={"image": {}},
    method="histogram",
    samples=8,
)
CALIBRATION = Calibration(
    PROVENANCE,
    {
        "x": statistics_of(HistogramCollector(), VALUES),
        "relu": statistics_of(HistogramCollector(), np.maximum(VALUES, 0)),
        "none": HistogramCollector().statistics(),
        "range": statistics_of(MaxCollector(), VALUES),
        "not finite": statistics_of(
            make_collector("histogram", allow_nonfinite=True),
            np.float32([[np.nan, 1.0], [np.inf, -np.inf]]),
        ),
    },
)
CONTENT = calibration_bytes(CALIBRATION)
ARRAYS, ENTRIES = flatten(CALIBRATION.statistics)
HEADER = {
    "format": artifact._CONTAINER.format,
    "format_version": artifact._CONTAINER.version,
    "provenance": copy.deepcopy(vars(PROVENANCE)),
    "tensors": ENTRIES,
}


def signed(header, arrays, **rest):
    """A file with a right checksum, as one would write who means harm."""
    header = {**header, "checksum": artifact.checksum(header, arrays)}
    return save(arrays, metadata={"ptq": json.dumps(header, sort_keys=True), **rest})


def refuse_or_same(path, content):
    path.write_bytes(content)
    try:
        found = load_calibration(path)
    except CalibrationFileError as error:
        assert str(path) in error.message and "\n" not in error.message and error.hint
    else:
        assert found == CALIBRATION


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(CalibrationFileError) as caught:
        load_calibration(path)
    assert str(path) in caught.value.message and caught.value.hint
    return caught.value.message


@QUICK
@given(flips=st.lists(st.tuples(st.integers(0, len(CONTENT) - 1), st.integers(0, 7)), min_size=1, max_size=4))
def test_flipped_bits_are_refused_or_harmless(tmp_path, flips):
    content = bytearray(CONTENT)
    for position, bit in flips:
        content[position] ^= 1 << bit
    refuse_or_same(tmp_path / "c", bytes(content))


@QUICK
@given(content=st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(tmp_path, content):
    refused(tmp_path / "c", content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@QUICK
@given(key=st.sampled_from(sorted(HEADER)), value=JSON)
def test_signed_header_with_any_value_is_refused_or_harmless(tmp_path, key, value):
    refuse_or_other_provenance(tmp_path / "c", signed({**HEADER, key: value}, ARRAYS))


def refuse_or_other_provenance(path, content):
    path.write_bytes(content)
    try:
        found = load_calibration(path)
    except CalibrationFileError:
        return
    # A text is a text: the stages compare it with their own, and refuse the calibration as stale.
    assert found.statistics == CALIBRATION.statistics
    for name, value in vars(PROVENANCE).items():
        assert type(getattr(found.provenance, name)) is type(value)


INTEGERS = st.integers(-3, 200) | st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400])


@QUICK
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(sorted(ARRAYS)),
            st.integers(0, 10**6),
            st.integers(0, 2**63 - 1) | st.integers(0, 3),
        ),
        min_size=1,
        max_size=4,
    ),
    entry=st.tuples(st.integers(0, len(ENTRIES) - 1), st.sampled_from(["count", "zeros", "bins"]), INTEGERS)
    | st.none(),
)
def test_signed_statistics_are_refused_or_give_every_method_a_scale(tmp_path, changes, entry):
    arrays = {key: value.copy() for key, value in ARRAYS.items()}
    for name, position, bits in changes:
        array = arrays[name]
        array.view(f"<u{array.itemsize}")[position % array.size] = bits % 2 ** (8 * array.itemsize)
    entries = copy.deepcopy(ENTRIES)
    if entry is not None:
        entries[entry[0]][entry[1]] = entry[2]
    path = tmp_path / "c"
    path.write_bytes(signed({**HEADER, "tensors": entries}, arrays))
    try:
        found = load_calibration(path).statistics
    except CalibrationFileError:
        return
    decided(found)


def decided(statistics):
    """Every method, on everything that was read: a scale that is a positive number, or a coded error."""
    for item in statistics.values():
        for method in METHODS:
            for symmetric in (True, False):
                try:
                    scale = decide(
                        item, AmaxSettings(method=method), UINT8, symmetric=symmetric
                    ).parameters.scale
                except MissingStatisticError:
                    assert item.histogram is None
                else:
                    assert np.isfinite(scale).all() and (scale > 0).all()


EXTREMES = [0.0, 1.0, -1.0, 2.0**-149, 2.0**-126, float(np.finfo(np.float32).max)]
FINITE = st.sampled_from(EXTREMES) | st.floats(width=32, allow_nan=False, allow_infinity=False)


@QUICK
@given(values=st.lists(FINITE, min_size=1, max_size=8), ends=st.tuples(FINITE, FINITE).map(sorted))
def test_a_range_that_is_not_the_histograms_is_refused(tmp_path, values, ends):
    """Both are sound, and the checksum is right; they contradict each other, which only harm can make."""
    histogram, zeros = from_values(values), values.count(0.0)
    arrays = {
        **{name: array[:0] for name, array in ARRAYS.items()},
        "keys": histogram.keys.astype("<u4"),
        "counts": histogram.counts.astype("<i8"),
        "minimum": np.array(ends[:1], "<f4"),
        "maximum": np.array(ends[1:], "<f4"),
    }
    where = {"bins": histogram.keys.size}
    where |= dict.fromkeys(("nan", "positive_infinities", "negative_infinities"), 0)
    entries = [{"name": "x", "count": len(values), "zeros": zeros, **where}]
    path = tmp_path / "c"
    path.write_bytes(signed({**HEADER, "tensors": entries}, arrays))
    low, high = min(values), max(values)
    if ends == [low, high]:
        decided(load_calibration(path).statistics)
        return
    try:
        decided(load_calibration(path).statistics)
    except CalibrationFileError as error:
        assert "its bins are not those of its range" in error.message
    else:
        # Another value of the same bin, or another end of the side where there are no values.
        assert histogram.fits(*ends)
