"""Which of several processes this is: from the variables that torchrun sets, or from none.

What ranks tell one another, tried with threads that share a store in memory.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch.distributed import HashStore

from ptq_cli.core.errors import DataShapeError, EmptyDataError, RanksError, UsageError
from ptq_cli.setup import ranks as talk
from ptq_cli.setup.ranks import RankMessages, Ranks, find_ranks, lost_as_error, part_together, require_single
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


@pytest.fixture
def talks() -> list[RankMessages]:
    store = HashStore()
    return [RankMessages(Ranks(rank, 3, 3), store) for rank in range(3)]


def in_threads(works: list[Callable[[], Any]]) -> list[Exception | None]:
    """Run all at once; return what each raised."""
    raised: list[Exception | None] = [None] * len(works)

    def run(index: int) -> None:
        try:
            works[index]()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            raised[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "nobody waits for ever"
    return raised


def test_all_meet(talks: list[RankMessages]) -> None:
    def meet_twice(one: RankMessages) -> None:
        one.wait_for_all("here")
        one.wait_for_all("there")

    assert in_threads([partial(meet_twice, one) for one in talks]) == [None] * 3


def test_an_error_reaches_those_who_wait(talks: list[RankMessages]) -> None:
    error = DataShapeError("input 'x' is wrong", hint="mend it")
    works = [
        lambda: talks[0].wait_for_all("end"),
        lambda: talks[1].report(error),
        lambda: talks[2].wait_for_all("end"),
    ]
    raised = in_threads(works)
    assert [str(item) for item in raised] == [str(error), "None", str(error)]
    assert isinstance(raised[0], DataShapeError)


def test_an_error_reaches_those_who_work(talks: list[RankMessages], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [100.0]
    monkeypatch.setattr(talk.time, "monotonic", lambda: seconds[0])
    talks[0].go_on()
    talks[1].report(EmptyDataError("nothing there"))
    talks[0].go_on()  # less than a second after the last look
    seconds[0] += 1
    with pytest.raises(EmptyDataError, match="nothing there"):
        talks[0].go_on()


def test_the_first_error_is_everybodys(talks: list[RankMessages]) -> None:
    first, second = DataShapeError("first"), EmptyDataError("second")
    assert talks[2].report(first) is first
    told = talks[0].report(second)
    assert (type(told), str(told)) == (DataShapeError, str(first))


def test_a_bug_elsewhere_is_a_bug(talks: list[RankMessages]) -> None:
    talks[2].report(KeyError("oops"))
    with pytest.raises(RuntimeError, match="rank 2 raised KeyError: 'oops'"):
        talks[0].raise_first()


def test_a_rank_that_vanished_is_named(talks: list[RankMessages]) -> None:
    raised = in_threads([partial(one.wait_for_all, "end", 0.3) for one in talks[:2]])
    assert [type(item) for item in raised] == [RanksError] * 2
    assert "no progress for 0 seconds, waiting for rank 2 of 3" in str(raised[0])


def test_a_slow_rank_is_waited_for(talks: list[RankMessages]) -> None:
    def slow() -> None:
        for _ in range(5):
            time.sleep(0.5)
            talks[2]._looked = 0.0
            talks[2].go_on()
        talks[2].wait_for_all("end", 2.0)

    works = [partial(one.wait_for_all, "end", 2.0) for one in talks[:2]]
    assert in_threads([*works, slow]) == [None] * 3


def test_nobody_left_to_tell(talks: list[RankMessages]) -> None:
    class Gone:
        def compare_set(self, *_arguments: object) -> bytes:
            raise RuntimeError("connection reset")

    error = EmptyDataError("nothing there")
    assert RankMessages(Ranks(0, 2, 2), Gone()).report(error) is error  # type: ignore[arg-type]


def test_what_torch_raises_gets_a_code() -> None:
    with (
        pytest.raises(RanksError, match="cannot be reached: Connection closed by peer") as caught,
        lost_as_error(),
    ):
        raise RuntimeError("Connection closed by peer\nmore")
    assert "ended first" in caught.value.hint


def test_the_first_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    monkeypatch.setattr(talk, "open_store", lambda _ranks: store)
    order: list[int] = []

    def end(rank: int) -> None:
        if rank == 0:
            order.append(rank)
        part_together(Ranks(rank, 3, 3))
        if rank:
            order.append(rank)

    assert in_threads([partial(end, rank) for rank in (2, 1, 0)]) == [None] * 3
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2]


def test_parting_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "PARTING_SECONDS", 0.2)
    store = HashStore()
    monkeypatch.setattr(talk, "open_store", lambda _ranks: store)
    part_together(Ranks(0, 2, 2))

    def unreachable(_ranks: Ranks) -> None:
        raise RanksError("gone")

    monkeypatch.setattr(talk, "open_store", unreachable)
    part_together(Ranks(1, 2, 2))
