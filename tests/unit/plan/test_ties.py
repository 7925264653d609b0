"""Groups of tensors that share parameters, and whose statistics decide them."""

import itertools

from ptq_cli.plan.ties import Ties


def test_what_is_moved_takes_the_parameters_of_where_it_was_moved_from():
    ties = Ties()
    ties.move("c", "b")
    ties.move("b", "a")
    groups = ties.groups(["a", "b", "c", "d"])
    assert groups.sources == {"a": "a", "b": "a", "c": "a", "d": "d"}
    assert groups.unions == {}


def test_ties_join_groups_also_through_what_is_moved():
    ties = Ties()
    ties.move("moved", "a")
    ties.tie(["moved", "b", "out"])
    ties.tie(["out2", "c", "b"])
    groups = ties.groups(["a", "b", "c", "moved", "out", "out2", "alone"])
    assert {groups.sources[name] for name in ("a", "b", "c", "moved", "out", "out2")} == {"a"}
    assert groups.unions == {"a": ("a", "b", "c", "out", "out2")}
    assert groups.sources["alone"] == "alone"


def test_a_chain_of_thousands_is_no_recursion():
    ties = Ties()
    names = [f"t{index}" for index in range(20_000)]
    for before, after in itertools.pairwise(names):
        ties.tie([after, before])
    assert set(ties.groups(names).sources.values()) == {"t0"}
