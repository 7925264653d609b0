"""Which of several processes this is: from the variables that torchrun sets, or from none."""

import pytest

from ptq_cli.core.errors import RanksError, UsageError
from ptq_cli.setup.ranks import Ranks, find_ranks, require_single
from tests.each_case import each_case

GOOD = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}


def test_the_variables_are_read():
    assert find_ranks(GOOD) == Ranks(2, 4, 2)
    shared = {name: text for name, text in GOOD.items() if name != "LOCAL_WORLD_SIZE"}
    assert find_ranks(shared) == Ranks(2, 4, 4), "without a local number all share the machine"
    assert find_ranks({**GOOD, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}) is None
    assert [Ranks(rank, 6, 3).local_rank for rank in range(6)] == [0, 1, 2, 0, 1, 2]


@each_case("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_part_of_them_is_not_torchrun(missing):
    assert find_ranks({name: text for name, text in GOOD.items() if name != missing}) is None


@each_case(
    "name, text",
    [
        *[
            (name, text)
            for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
            for text in ("", "x", "-1", "1.0", "²", "9" * 30)
        ],
        ("RANK", "4"),
        ("WORLD_SIZE", "0"),
        ("LOCAL_WORLD_SIZE", "0"),
        ("LOCAL_WORLD_SIZE", "5"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
    ],
)
def test_what_does_not_fit_is_refused(name, text):
    with pytest.raises(RanksError) as caught:
        find_ranks({**GOOD, name: text})
    assert name in caught.value.message
    assert len(caught.value.message) < 150
    assert "unset RANK" in caught.value.hint


@each_case("of_machine, own", [(8, 2), (2, 1), (1, 1), (9, 3)])
def test_threads_are_shared_by_those_of_one_machine(of_machine, own):
    assert Ranks(0, 12, 3).threads(of_machine) == own


def test_the_work_of_one():
    require_single(None, "ptq export")
    with pytest.raises(
        UsageError, match="torchrun started 4 processes, and ptq export runs as a single process"
    ):
        require_single(Ranks(2, 4, 4), "ptq export")
