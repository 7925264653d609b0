import json
import os
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from ptq_cli.collectors import calibration_file as artifact
from ptq_cli.collectors.calibration_file import (
    Calibration,
    Provenance,
    Share,
    calibration_bytes,
    load_calibration,
    save_calibration,
)
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.collectors.flat_statistics import flatten
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.core.errors import CalibrationFileError, OutputFileError
from tests.each_case import each_case

RNG = np.random.default_rng(31)
VALUES = RNG.normal(size=(16, 3)).astype(np.float32)
PROVENANCE = Provenance(
    model="a" * 64,
    source="b" * 64,
    data="c" * 64,
    settings={"calibration.method": "'histogram'"},
    flags={"calibration": {"method": "histogram", "samples": 4}},
    method="histogram",
    samples=16,
)


def statistics_of(collector, array=VALUES):
    assert collector.update(array)
    return collector.statistics()


STATISTICS = {
    "x": statistics_of(HistogramCollector()),
    "always zero": statistics_of(HistogramCollector(), np.zeros(5, np.float32)),
    "never seen": HistogramCollector().statistics(),
    "range": statistics_of(MaxCollector()),
    "range, never seen": MaxCollector().statistics(),
    "not finite": statistics_of(
        make_collector("histogram", allow_nonfinite=True),
        np.array([[np.nan, 1.0, -3.0], [np.inf, -np.inf, 0.0]], np.float32),
    ),
    "never finite": statistics_of(make_collector("max", allow_nonfinite=True), np.full(3, np.nan)),
    "/ünïcode/\u2603\ud800\n": statistics_of(HistogramCollector(), VALUES * 1e30),
}
CALIBRATION = Calibration(PROVENANCE, STATISTICS)
ARRAYS, ENTRIES = flatten(STATISTICS)
HEADER = {
    "format": "ptq.calibration",
    "format_version": 4,
    "provenance": vars(PROVENANCE),
    "tensors": ENTRIES,
}


def signed(header, arrays):
    """A file whose checksum is right, whatever else is in it."""
    header = {**header, "checksum": artifact.checksum(header, arrays)}
    return save(arrays, metadata={"ptq": json.dumps(header, sort_keys=True)})


def message_of(path, content):
    path.write_bytes(content)
    with pytest.raises(CalibrationFileError) as caught:
        load_calibration(path)
    assert caught.value.code == "PTQ-CALIB-002"
    assert caught.value.hint
    return caught.value.message.replace(str(path), "FILE")


def test_the_share_is_kept(tmp_path):
    share = Share(count=5, batches={2: 3, 4: 2}, batch_size=8, finished=False)
    calibration = Calibration(replace(PROVENANCE, share=share), STATISTICS)
    save_calibration(calibration, tmp_path / "c.safetensors")
    assert load_calibration(tmp_path / "c.safetensors") == calibration


def test_same_statistics_give_the_same_bytes_in_any_order_of_names():
    backwards = Calibration(PROVENANCE, dict(reversed(STATISTICS.items())))
    assert calibration_bytes(backwards) == calibration_bytes(CALIBRATION)


def test_file_is_plain_safetensors(tmp_path):
    save_calibration(CALIBRATION, tmp_path / "c.safetensors")
    with safe_open(tmp_path / "c.safetensors", "numpy") as opened:
        header = json.loads(opened.metadata()["ptq"])
        assert set(opened.keys()) == {"keys", "counts", "minimum", "maximum"}
        assert opened.get_tensor("counts").dtype == np.int64
    assert (header["format"], header["format_version"]) == ("ptq.calibration", 4)
    assert header["provenance"]["samples"] == 16


@each_case("version", [5, 2, "4", None])
def test_other_format_version_names_both(tmp_path, version):
    # A newer ptq may keep other arrays; the version is what the user has to hear about.
    content = signed({**HEADER, "format_version": version}, {"other": np.zeros(1, np.float32)})
    assert (
        message_of(tmp_path / "c", content)
        == f"'FILE' has format version {version}, this version of ptq reads 4"
    )


def test_a_file_with_channels_of_an_earlier_version_is_to_be_calibrated_again(tmp_path):
    entries = [{**entry, "channels": 3, "axis": 1} for entry in ENTRIES]
    arrays = {**ARRAYS, "channel_count": np.ones(3 * len(ENTRIES), np.int64)}
    content = signed({**HEADER, "format_version": 3, "tensors": entries}, arrays)
    path = tmp_path / "c"
    said = message_of(path, content)
    assert said == "'FILE' has format version 3, this version of ptq reads 4"
    with pytest.raises(CalibrationFileError) as caught:
        load_calibration(path)
    assert caught.value.hint == "calibrate again, or use the version of ptq that wrote it"


@each_case(
    "metadata",
    [None, {"format": "pt"}, {"ptq": "{}"}, {"ptq": "[]"}, {"ptq": '{"format": "ptq.report"}'}],
    ids=["no metadata", "weights of a model", "no format", "a list", "another format"],
)
def test_other_safetensors_file_is_no_calibration(tmp_path, metadata):
    content = save({"weight": np.zeros(3, np.float32)}, metadata=metadata)
    assert message_of(tmp_path / "c", content) == "'FILE' is not a calibration"


NOT_SAFETENSORS = {
    "empty": b"",
    "text": b"calibration",
    "huge header length": (2**63).to_bytes(8, "little") + b"{}",
    "no UTF-8": (4).to_bytes(8, "little") + b'{"\xff"',
    "no JSON": (4).to_bytes(8, "little") + b"{{{{",
    "deep JSON": (20_000).to_bytes(8, "little") + b"[" * 20_000,
}


@each_case("content", NOT_SAFETENSORS.values(), ids=NOT_SAFETENSORS)
def test_other_file_is_damaged(tmp_path, content):
    assert message_of(tmp_path / "c", content).startswith("'FILE' is damaged: ")


def changed(index, **values):
    entries = [dict(entry) for entry in ENTRIES]
    entries[index].update(values)
    return {**HEADER, "tensors": entries}


X = next(index for index, entry in enumerate(ENTRIES) if entry["name"] == "x")
WRONG_HEADERS = {
    "no provenance": ({**HEADER, "provenance": None}, "it does not name its sources"),
    "unknown provenance": ({**HEADER, "provenance": {"x": 1}}, "it does not name its sources"),
    "provenance of a wrong type": (
        {**HEADER, "provenance": {**vars(PROVENANCE), "samples": True}},
        "its 'samples' is True",
    ),
    "negative samples": (
        {**HEADER, "provenance": {**vars(PROVENANCE), "samples": -1}},
        "its settings are not text, or its samples are negative",
    ),
    "settings that are no text": (
        {**HEADER, "provenance": {**vars(PROVENANCE), "settings": {"a": 1}}},
        "its settings are not text, or its samples are negative",
    ),
    "share that is none": (
        {**HEADER, "provenance": {**vars(PROVENANCE), "share": 1}},
        "it does not say which shards it holds",
    ),
    "no tensors": ({**HEADER, "tensors": None}, "its parts are not those of a calibration"),
    "tensor that is none": ({**HEADER, "tensors": [1]}, "a tensor has no name, or one that another has too"),
    "name twice": (changed(X, name="range"), "a tensor has no name, or one that another has too"),
    "no name": (changed(X, name=7), "a tensor has no name, or one that another has too"),
    "missing tensor": ({**HEADER, "tensors": ENTRIES[:-1]}, "some of its values belong to no tensor"),
    "bins beyond the arrays": (changed(X, bins=10**6), "tensor 'x': expected 1000000 values, "),
    "negative bins": (changed(X, bins=-1), "tensor 'x': 'bins' is -1"),
    "bins that are no number": (changed(X, bins="4"), "tensor 'x': 'bins' is 4"),
    "infinite bins": (changed(X, bins=float("inf")), "Infinity is not JSON"),
    "negative count": (changed(X, count=-1), "tensor 'x': 'count' is -1"),
    "count beyond 63 bits": (changed(X, count=2**63), f"tensor 'x': 'count' is {2**63}"),
    "count that is no number": (changed(X, count=True), "tensor 'x': 'count' is True"),
    "wrong count": (changed(X, count=3), "tensor 'x': its bins do not hold as many values as it counts"),
    "count of nothing": (changed(X, count=0), "tensor 'x': it has a range without values"),
    "zeros above the count": (
        changed(X, zeros=100),
        "tensor 'x': its bins do not hold as many values as it counts",
    ),
    "negative count of NaN": (changed(X, nan=-1), "tensor 'x': 'nan' is -1"),
    "infinities that are no number": (
        changed(X, positive_infinities=0.5),
        "tensor 'x': 'positive_infinities' is 0.5",
    ),
}


@each_case("header, message", WRONG_HEADERS.values(), ids=WRONG_HEADERS)
def test_header_that_cannot_be_is_damaged(tmp_path, header, message):
    found = message_of(tmp_path / "c", signed(header, ARRAYS))
    assert found.startswith(f"'FILE' is damaged: {message}")


ONE = {"x": STATISTICS["x"]}
ONE_ARRAYS, ONE_ENTRIES = flatten(ONE)


def replaced(name, index, value):
    array = ONE_ARRAYS[name].copy()
    array[index] = value
    return {**ONE_ARRAYS, name: array}


WRONG_ARRAYS = {
    "missing array": ({"keys": ONE_ARRAYS["keys"]}, "the array 'counts' is missing, or is not int64"),
    "array too many": ({**ONE_ARRAYS, "more": np.zeros(1, np.float32)}, "its parts are not those of a"),
    "wrong dtype": (
        {**ONE_ARRAYS, "keys": ONE_ARRAYS["keys"].astype(np.int64)},
        "the array 'keys' is missing, or is not uint32",
    ),
    "unknown dtype": ({**ONE_ARRAYS, "keys": ONE_ARRAYS["keys"].astype(np.uint16)}, "an array is U16["),
    "two dimensions": ({**ONE_ARRAYS, "minimum": ONE_ARRAYS["minimum"][None]}, "an array is F32[1, 1]"),
    "value too many": (
        {**ONE_ARRAYS, "minimum": np.tile(ONE_ARRAYS["minimum"], 2)},
        "some of its values belong to no tensor",
    ),
    "value too few": (
        {**ONE_ARRAYS, "minimum": np.zeros(0, np.float32)},
        "tensor 'x': expected 1 values, 0 are left",
    ),
    "NaN in a range": (replaced("minimum", 0, np.nan), "tensor 'x': its range is not finite and ordered"),
    "infinite range": (replaced("maximum", 0, np.inf), "tensor 'x': its range is not finite and ordered"),
    "range the wrong way round": (
        replaced("minimum", 0, 99),
        "tensor 'x': its range is not finite and ordered",
    ),
    "bin of NaN": (replaced("keys", -1, 255 << 11), "tensor 'x': a bin is not valid, or is empty"),
    "bin beyond 20 bits": (replaced("keys", -1, 2**32 - 1), "tensor 'x': a bin is not valid, or is empty"),
    "negative bin": (replaced("counts", 0, -1), "tensor 'x': a bin is not valid, or is empty"),
    "empty bin": (replaced("counts", 0, 0), "tensor 'x': a bin is not valid, or is empty"),
    "overflowing bins": (
        replaced("counts", slice(0, 3), 2**63 - 1),
        "tensor 'x': its bins do not hold as many values as it counts",
    ),
    "bins out of order": (
        {**ONE_ARRAYS, "keys": ONE_ARRAYS["keys"][::-1].copy()},
        "tensor 'x': its bins are not in order",
    ),
    "bin that is too fine": (replaced("keys", 0, 1), "tensor 'x': its bins are not in order"),
}


@each_case("arrays, message", WRONG_ARRAYS.values(), ids=WRONG_ARRAYS)
def test_arrays_that_cannot_be_are_damaged(tmp_path, arrays, message):
    found = message_of(tmp_path / "c", signed({**HEADER, "tensors": ONE_ENTRIES}, arrays))
    assert found.startswith(f"'FILE' is damaged: {message}")


def test_failing_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    save_calibration(CALIBRATION, path)
    before = path.read_bytes()

    def full(self, content):
        self.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OutputFileError, match=r"cannot write '.*c\.safetensors': no space left on device"):
        save_calibration(Calibration(PROVENANCE, {}), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_folder_that_cannot_be_written_is_an_output_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputFileError, match="permission denied"):
        save_calibration(CALIBRATION, tmp_path / "c.safetensors")
