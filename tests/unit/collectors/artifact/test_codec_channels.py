"""Channels in a calibration file from outside: what cannot have been saved is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from ptq_cli.collectors import calibration_file as artifact
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.collectors.share import flatten
from ptq_cli.core.errors import CalibrationFileError
from tests.each_case import each_case

VALUES = np.random.default_rng(31).normal(size=(16, 3)).astype(np.float32)
PROVENANCE = artifact.Provenance(
    model="m", source="s", data="d", settings={}, flags={}, method="histogram", samples=16
)


def statistics_of(array):
    collector = make_collector("histogram", axis=1)
    assert collector.update(array)
    return collector.statistics()


def signed(entries, arrays):
    """A file whose checksum is right, whatever else is in it."""
    header = {"format": artifact.CONTAINER.format, "format_version": artifact.CONTAINER.version}
    header |= {"provenance": vars(PROVENANCE), "tensors": entries}
    header["checksum"] = artifact.checksum(header, arrays)
    return save(arrays, metadata={"ptq": json.dumps(header, sort_keys=True)})


def message_of(path, content):
    path.write_bytes(content)
    with pytest.raises(CalibrationFileError) as caught:
        load_calibration(path)
    assert caught.value.code == "PTQ-CALIB-002"
    return caught.value.message.replace(str(path), "FILE")


CHANNEL_ARRAYS, CHANNEL_ENTRIES = flatten({"x": statistics_of(VALUES)})


def of_channels(name, index, value):
    array = CHANNEL_ARRAYS[name].copy()
    array[index] = value
    return {**CHANNEL_ARRAYS, name: array}


def swapped(name):
    array = CHANNEL_ARRAYS[name].copy()
    array[:2] = array[1::-1]
    return {**CHANNEL_ARRAYS, name: array}


WRONG_CHANNELS = {
    "negative count": (of_channels("channel_count", 0, -1), "a channel has a negative number of values"),
    "negative zeros": (of_channels("channel_zeros", 0, -1), "a channel has a negative number of values"),
    "other count": (of_channels("channel_count", 0, 15), "its channels are not those of its values"),
    "other zeros": (of_channels("channel_zeros", 0, 1), "its channels are not those of its values"),
    "overflowing counts": (
        of_channels("channel_count", slice(None), 2**63 - 1),
        "its channels are not those of its values",
    ),
    "wider range": (of_channels("channel_maximum", 0, 99), "its channels are not those of its values"),
    "NaN": (of_channels("channel_minimum", 1, np.nan), "its range is not finite and ordered"),
    "negative bins": (of_channels("channel_bins", 0, -1), "a channel has a negative number of bins"),
    "bins beyond the arrays": (of_channels("channel_bins", 0, 2**62), f"expected {2**62 + 32} values, "),
    "bin of NaN": (of_channels("channel_keys", 0, 255 << 11), "a bin is not valid, or is empty"),
    "empty bin": (of_channels("channel_counts", 0, 0), "a bin is not valid, or is empty"),
    "overflowing bins": (
        of_channels("channel_counts", slice(0, 3), 2**63 - 1),
        "its channels' bins do not hold as many values as it counts",
    ),
    "bins out of order": (swapped("channel_keys"), "its channels' bins are not in order"),
    "bin that is too fine": (
        of_channels("channel_keys", -1, CHANNEL_ARRAYS["channel_keys"][-1] + 1),
        "its channels' bins are not in order",
    ),
}


@each_case("arrays, message", WRONG_CHANNELS.values(), ids=WRONG_CHANNELS)
def test_channels_that_cannot_be_are_damaged(tmp_path, arrays, message):
    found = message_of(tmp_path / "c", signed(CHANNEL_ENTRIES, arrays))
    assert found.startswith(f"'FILE' is damaged: tensor 'x': {message}")


def test_values_in_another_channel_than_counted_are_noticed(tmp_path):
    arrays, entries = flatten({"x": statistics_of(np.float32([[1, 2], [1, 2], [1, 2]]))})
    arrays["channel_counts"] = np.array([2, 4])
    found = message_of(tmp_path / "c", signed(entries, arrays))
    assert found.endswith("tensor 'x': a channel's bins do not hold as many values as it counts")


def test_what_was_saved_is_loaded(tmp_path):
    (tmp_path / "c").write_bytes(signed(CHANNEL_ENTRIES, CHANNEL_ARRAYS))
    assert load_calibration(tmp_path / "c").statistics == {"x": statistics_of(VALUES)}
