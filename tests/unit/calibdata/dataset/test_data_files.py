import os

import pytest

from ptq_cli.calibdata.dataset import data_files as shard_files
from ptq_cli.calibdata.dataset.data_files import (
    digest_files,
    expand_ranges,
    has_range,
    list_shards,
    require_files,
)
from ptq_cli.core.errors import DataFormatError, InputFileError
from tests.each_case import each_case


@pytest.fixture
def make(tmp_path):
    """Make empty files; return their folder."""

    def build(*names):
        for name in names:
            (tmp_path / "shards" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "shards" / name).touch()
        return str(tmp_path / "shards")

    return build


@each_case(
    "pattern, names",
    [
        ("t-{0..2}.tar", ["t-0.tar", "t-1.tar", "t-2.tar"]),
        ("t-{08..11}.tar", ["t-08.tar", "t-09.tar", "t-10.tar", "t-11.tar"]),
        ("{9..10}", ["9", "10"]),
        ("{0..1}/{1..2}", ["0/1", "0/2", "1/1", "1/2"]),
        ("t-{3..3}.tar", ["t-3.tar"]),
        ("t.tar", ["t.tar"]),
    ],
)
def test_patterns(pattern, names):
    assert expand_ranges(pattern) == names


@each_case("name", ["t-{a..b}.tar", "t-{1,2}.tar", "../t.tar", "t-{1..}.tar", "t-{1.2}.tar"])
def test_what_is_no_pattern(name):
    assert not has_range(name)


def test_patterns_that_count_downwards_or_for_ever():
    with pytest.raises(InputFileError, match="counts downwards: 3 to 1"):
        expand_ranges("t-{3..1}.tar")
    with pytest.raises(InputFileError, match="more than 1000000 files"):
        expand_ranges("{0..9999}{0..9999}")


def test_numbers_of_steps_are_in_order(make):
    root = make("step-10.npz", "step-9.npz", "step-010.npz", "step-1-2.npz", "a.npz", "STEP.NPZ", "notes.txt")
    names = [path.rpartition("/")[2] for path in list_shards(root)]
    assert names == ["STEP.NPZ", "a.npz", "step-1-2.npz", "step-9.npz", "step-010.npz", "step-10.npz"]


@pytest.mark.parametrize("names", [("a.tar", "b.parquet"), ("a.tar", "b.jpg"), ("b.jpg", "a.parquet")])
def test_folders_of_two_kinds(make, names):
    with pytest.raises(DataFormatError, match=r"has data of two kinds: 'a\..*' and 'b\..*'"):
        list_shards(make(*names))


def test_missing_folder(tmp_path):
    with pytest.raises(InputFileError, match="cannot be listed: No such file"):
        list_shards(str(tmp_path / "missing"))


def test_a_file_that_is_no_file(make, tmp_path):
    root = make("a.tar")
    os.mkfifo(tmp_path / "shards/b.tar")
    with pytest.raises(InputFileError, match=r"b\.tar' is not a regular file"):
        require_files(list_shards(root))


def changed(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(bytes(content))
    return path


def test_a_digest_is_of_every_byte_of_small_sets_and_a_part_of_large_ones(tmp_path, monkeypatch):
    paths = [tmp_path / "a", tmp_path / "b"]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 3_000_000)
    before = digest_files(list(map(str, paths)))
    assert digest_files(list(map(str, reversed(paths)))) != before
    paths[0] = paths[0].rename(tmp_path / "c")  # names do not matter
    assert digest_files(list(map(str, paths))) == before
    seen = {before}
    for place in (0, 1_500_000, 2_999_999):
        seen.add(digest_files([str(changed(paths[0], place)), str(paths[1])]))
    assert len(seen) == 4
    monkeypatch.setattr(shard_files, "_WHOLE_BYTES", 5_000_000)
    part = digest_files(list(map(str, paths)))
    changed(paths[0], 100_000)  # between two pieces
    assert digest_files(list(map(str, paths))) == part
    changed(paths[1], 2_999_999)
    assert digest_files(list(map(str, paths))) != part
    paths[1].unlink()
    with pytest.raises(InputFileError, match=r"b' cannot be read: No such file"):
        digest_files(list(map(str, paths)))
