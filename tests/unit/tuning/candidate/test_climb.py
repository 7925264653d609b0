"""The climb: which candidate comes next, when the held-out samples are looked at, and what ends it."""

from dataclasses import dataclass, field, replace

import pytest

from ptq_cli.core.errors import NothingToQuantizeError, StaleCalibrationError
from ptq_cli.evaluation.document.ladder import LADDER_INTERRUPTED
from ptq_cli.evaluation.interval import Flips
from ptq_cli.recipe.sections import GateSettings
from ptq_cli.tuning.budget_reach import LEVEL
from ptq_cli.tuning.candidate import (
    NO_MORE_LOOKS,
    NO_MORE_RUNGS,
    NO_MORE_TIME,
    Candidate,
    CandidateMeasurement,
    TimeIsOverError,
    TuningSearch,
)
from tests.measured import measurement

ROUND, RANGES = Candidate(rungs=("round",)), Candidate(rungs=("ranges",))
NEXT = Candidate(goal_db=23.0)
Script = dict[Candidate, tuple[float, int, int]]


def seen(samples: int, sqnr: float, lost: int) -> CandidateMeasurement:
    """What a candidate would show that loses so many answers."""
    top1 = measurement("top1", 0.9 - lost / samples, 0.9, flips=Flips.counted(samples, lost, 0))
    noise = measurement("sqnr_db", sqnr)
    return CandidateMeasurement(samples, (top1, noise))


@dataclass
class Scripted:
    """Candidates with an SQNR, and answers lost of 500 to choose by and of those set aside."""

    script: Script
    set_aside: int = 1000
    last: Candidate | None = None
    proven: list[Candidate] = field(default_factory=list)
    kept: list[Candidate] = field(default_factory=list)
    fails: dict[Candidate, BaseException] = field(default_factory=dict)

    def compare(self, candidate: Candidate) -> CandidateMeasurement:
        if candidate in self.fails:
            raise self.fails[candidate]
        if candidate.goal_db is not None and candidate not in self.script:
            raise NothingToQuantizeError("nothing is left")
        sqnr, lost, _ = self.script[candidate]
        return replace(seen(500, sqnr, lost), is_last=candidate == self.last)

    def prove(self, candidate: Candidate) -> CandidateMeasurement:
        self.proven.append(candidate)
        return seen(self.set_aside, self.script[candidate][0], self.script[candidate][2])

    def keep(self, candidate: Candidate) -> None:
        self.kept.append(candidate)


def climbed(subject, *rungs, limit=0.02, over=(), late=(), **options):
    left = iter(over)
    search = TuningSearch(
        candidates=subject,
        gate=GateSettings(max_drop={"top1": limit}),
        is_over=lambda: next(left, False),
        tell=lambda _step: None,
        **options,
    )
    search.run(rungs, late=late)
    return search


def test_the_default_is_enough():
    subject = Scripted({Candidate(): (30.0, 0, 2)})
    climb = climbed(subject, "ranges", "round")
    assert climb.met
    assert [step.name for step in climb.steps] == ["default"]
    assert climb.steps[0].level == LEVEL / 2
    assert subject.kept == subject.proven == [Candidate()]


def test_a_rung_that_is_no_better_is_left_out_and_the_next_builds_on_the_best():
    subject = Scripted({Candidate(): (20.0, 90, 90), RANGES: (19.0, 99, 99), ROUND: (30.0, 1, 2)})
    climb = climbed(subject, "ranges", "round")
    assert [(step.name, step.kept) for step in climb.steps] == [
        ("default", True),
        ("ranges", False),
        ("round", True),
    ]
    assert climb.met
    assert climb.steps[climb.chosen].rungs == ("round",)
    assert subject.proven == [ROUND]  # The others were not expected to pass.


def test_looks_share_five_percent():
    goals = [Candidate(goal_db=goal) for goal in (23.0, 26.0, 29.0)]
    script: Script = {Candidate(): (20.0, 0, 60)}
    script |= {goal: (goal.goal_db, 0, 60) for goal in goals}
    climb = climbed(Scripted(script), limit=0.05)
    levels = [step.level for step in climb.steps if step.level is not None]
    assert levels == pytest.approx([0.025, 0.0125, 0.00625, 0.003125])
    assert not climb.met
    assert climb.stopped == NO_MORE_RUNGS
    assert "misses its budget" in climb.advice()[0]


def test_nobody_looks_who_could_see_nothing():
    # 600 samples without a changed answer show less than 0.82 % at the second look, and 0.64 % at the first.
    script: Script = {Candidate(): (20.0, 0, 4), Candidate(goal_db=23.0): (25.0, 0, 4)}
    climb = climbed(Scripted(script, set_aside=600), limit=0.007)
    assert climb.stopped == NO_MORE_LOOKS
    assert [step.name for step in climb.steps] == ["default"]
    assert climb.advice()[0].startswith(
        "top1 keeps its budget on the 600 held-out samples, which are too few"
    )


def test_the_last_look_may_use_all_that_is_left():
    subject = Scripted({Candidate(): (20.0, 40, 8)})
    climb = climbed(subject)
    assert climb.steps[0].level == LEVEL
    assert climb.met  # 8 of 1,000 lost, and 2 % allowed.


def test_a_goal_comes_after_a_look_that_may_fail():
    climb = climbed(Scripted({Candidate(): (20.0, 8, 3)}))
    assert climb.met
    assert [step.name for step in climb.steps] == ["default"]


@pytest.mark.parametrize(
    "cut", [{"over": [True]}, {"fails": {RANGES: TimeIsOverError()}}], ids=["before", "in"]
)
def test_rungs_that_take_their_share_of_the_time_leave_the_rest_to_goals(cut):
    script: Script = {Candidate(): (20.0, 90, 90), NEXT: (25.0, 80, 80)}
    subject = Scripted(script, fails=cut.get("fails", {}))
    shares: list[float] = []
    climb = climbed(subject, "ranges", "round", over=cut.get("over", ()), allow=shares.append)
    assert [step.name for step in climb.steps] == ["default", "goal 23 dB"]
    assert climb.stopped == NO_MORE_TIME, "not all rungs were tried"
    assert shares == [0.5, 1.0]


@pytest.mark.parametrize(
    ("error", "stopped"), [(TimeIsOverError(), NO_MORE_TIME), (KeyboardInterrupt(), LADDER_INTERRUPTED)]
)
def test_a_candidate_that_is_cut_short_leaves_the_best(error, stopped):
    subject = Scripted({Candidate(): (20.0, 90, 90)}, fails={RANGES: error})
    climb = climbed(subject, "ranges", "round")
    assert climb.stopped == stopped
    assert climb.chosen == 0
    assert subject.kept == [Candidate()]


def test_an_interrupt_before_the_first_candidate_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        climbed(Scripted({}, fails={Candidate(): KeyboardInterrupt()}))


def test_an_interrupt_of_the_last_look_leaves_the_best():
    class Cut(Scripted):
        def prove(self, candidate: Candidate) -> CandidateMeasurement:
            raise KeyboardInterrupt

    climb = climbed(Cut({Candidate(): (20.0, 90, 90)}))
    assert (climb.stopped, climb.chosen, climb.met) == (LADDER_INTERRUPTED, 0, False)


def test_a_goal_that_cannot_be_made_is_passed_over():
    script: Script = {Candidate(): (20.0, 90, 90), Candidate(goal_db=26.0): (30.0, 0, 0)}
    climb = climbed(Scripted(script, fails={NEXT: StaleCalibrationError("a pool")}))
    assert climb.met
    assert [step.name for step in climb.steps] == ["default", "goal 26 dB"]
    climb = climbed(Scripted(script, fails={NEXT: NothingToQuantizeError("nothing is left")}))
    assert not climb.met
    assert [step.name for step in climb.steps] == ["default"], "a higher one would leave no more"


def test_goals_end_where_a_higher_one_brings_nothing():
    script: Script = {Candidate(): (20.0, 90, 90), NEXT: (22.0, 80, 80)}
    script[Candidate(goal_db=26.0)] = (30.0, 0, 0)
    climb = climbed(Scripted(script, last=NEXT))
    assert not climb.met
    assert [step.name for step in climb.steps] == ["default", "goal 23 dB"]
    assert climb.stopped == NO_MORE_RUNGS


def test_what_takes_long_comes_before_goals_and_each_builds_on_the_best():
    both = Candidate(rungs=("ranges", "round"))
    script: Script = {
        Candidate(): (20.0, 90, 90),
        RANGES: (21.0, 90, 90),
        both: (20.0, 60, 60),
        Candidate(rungs=("ranges",), goal_db=24.0): (30.0, 0, 0),
    }
    subject = Scripted(script)
    climb = climbed(subject, "ranges", "round", late=["round"])
    assert climb.met
    assert [step.name for step in climb.steps] == ["default", "ranges", "round", "goal 24 dB"]
    assert [step.kept for step in climb.steps] == [True, True, False, True]
    assert Candidate.of(climb.steps[-1]) == subject.kept[-1] == subject.proven[-1]
