"""Of several processes the first speaks, and all end after it."""

import sys

import pytest

from ptq_cli.cli import first_rank as ranks
from ptq_cli.setup import rank_messages as talk
from ptq_cli.setup.ranks import Ranks

VARIABLES = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture
def parted(monkeypatch: pytest.MonkeyPatch) -> list[Ranks]:
    """The ranks that came to the parting."""
    found: list[Ranks] = []
    monkeypatch.setattr(talk, "part_together", found.append)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize(
    ("rank", "debug", "out", "err"),
    [
        ("0", False, "result\n", "talk\n"),
        ("1", False, "", ""),
        ("1", True, "", "talk\n"),
        (None, False, "result\n", "talk\n"),
        ("nonsense", False, "result\n", "talk\n"),
    ],
)
def test_who_speaks(parted, monkeypatch, capsys, rank, debug, out, err):
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with ranks.only_first_rank_prints(debug=debug):
        print("result")
        print("talk", file=sys.stderr)
        assert parted == []
    assert capsys.readouterr() == (out, err)
    assert [item.rank for item in parted] == ([int(rank)] if rank in ("0", "1") else [])


def test_a_rank_parts_even_where_it_fails(parted: list[Ranks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ZeroDivisionError), ranks.only_first_rank_prints(debug=False):
        raise ZeroDivisionError
    assert len(parted) == 1
