"""Candidates of a tuning: how each is made, what was measured of it, which is next, and their checkpoint.

It knows neither models nor data.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol

from ptq_cli.core.documents import decode, encode, strict_json
from ptq_cli.core.errors import InvalidOnnxError, NothingToQuantizeError, ReportError, StaleCalibrationError
from ptq_cli.core.files import write_text
from ptq_cli.core.read_files import read_file
from ptq_cli.evaluation.document.ladder import LADDER_INTERRUPTED, LadderStep, MovedLayers
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.metrics.metric_registry import SQNR
from ptq_cli.recipe.sections import GateSettings
from ptq_cli.setup.resumable import Tell, continued
from ptq_cli.tuning.budget_reach import LEVEL, advice_for, all_hold, budget_checks, could_be_shown


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What a model is made with.

    Attributes:
        goal_db: SQNR of the worst output that layers in float and other ranges have to bring; the recipe's
            goal if it is None.
    """

    rungs: tuple[str, ...] = ()
    goal_db: float | None = None

    @classmethod
    def of(cls, step: LadderStep) -> "Candidate":
        """The candidate that a step of a ladder tells of."""
        return cls(rungs=step.rungs, goal_db=step.goal_db)

    @property
    def key(self) -> str:
        """A text that identifies it."""
        return f"{','.join(self.rungs)}|{self.goal_db}"


@dataclass(frozen=True)
class CandidateMeasurement:
    """What was measured of a candidate, and on how many samples.

    Attributes:
        layers: what is not in integers of 8 bits in calibrated ranges for accuracy, by how it is computed.
        is_last: its goal was not reached, and a higher one would bring nothing more.
    """

    samples: int
    measurements: tuple[Measurement, ...]
    layers: MovedLayers = field(default_factory=MovedLayers)
    is_last: bool = False

    @property
    def sqnr_db(self) -> float:
        """SQNR of all outputs: the noise of each counts as a share of its signal.

        Infinite if no output differs.
        """
        shares = [10 ** (-value / 10) for value in self._each_db]
        # The mean of the noise, not of the decibels: one lost output must outweigh several good ones.
        noise = math.fsum(shares) / len(shares) if shares else math.nan
        return -10 * math.log10(noise) if noise else math.inf

    @property
    def worst_db(self) -> float:
        """SQNR of the worst output."""
        return min(self._each_db, default=math.nan)

    @property
    def _each_db(self) -> list[float]:
        named = (item for item in self.measurements if item.name.partition("[")[0] == SQNR)
        return [item.quantized_value for item in named]


DEFAULT = "default"
NO_MORE_RUNGS = "no rung is left to try"
NO_MORE_TIME = "the time budget was over"
NO_MORE_LOOKS = "the hold-out is too small for another look"
SHARE_OF_RUNGS = 0.5  # of the time budget: the rest is for layers in float, where rungs are not enough
GOALS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)  # times that the noise is halved: 3 to 48 dB
HALF_DB = 3.0
MOST_GOAL_DB = 200.0


class Candidates(Protocol):
    """Makes and measures candidates."""

    @property
    def set_aside(self) -> int:
        """How many samples the budget is proven on; at least 1."""

    def compare(self, candidate: Candidate) -> CandidateMeasurement:
        """Measure a candidate on the samples to choose by."""

    def prove(self, candidate: Candidate) -> CandidateMeasurement:
        """Measure a candidate on the held-out samples."""

    def keep(self, candidate: Candidate) -> None:
        """Write a candidate: it is the best so far."""


@dataclass(kw_only=True)
class TuningSearch:
    """Tries better and better candidates, until one provably keeps the budget.

    Attributes:
        allow: is told until which share of the time budget what follows may go on.
        stop: is called when the search is over, so that a last look may take its time.
        alone: whether an interrupt ends the search with the best so far; one of several processes cannot.
    """

    candidates: Candidates
    gate: GateSettings
    is_over: Callable[[], bool]
    tell: Callable[[LadderStep], None]
    allow: Callable[[float], None] = lambda _share: None
    stop: Callable[[], None] = lambda: None
    alone: bool = True
    steps: list[LadderStep] = field(default_factory=list)
    chosen: int = 0
    met: bool = False
    stopped: str = ""
    _best: Candidate = field(default_factory=Candidate)
    _seen: CandidateMeasurement = CandidateMeasurement(0, ())
    _is_last: bool = False
    _spent: float = 0.0

    def run(self, rungs: Sequence[str], start: Candidate = Candidate(), late: Sequence[str] = ()) -> None:
        """Try the default, then each rung on top of the best, then higher and higher goals.

        After each candidate that is better, the held-out samples are looked at if they are expected to show
        that the budget is kept. Each look may be wrong with half of the probability that is left of 5 %, so
        all of them together are wrong in at most 5 % of cases; and what is tried next depends on a look only
        in that the search goes on, so the candidates are not chosen by these samples.

        Of the rungs, those that are ``late`` come when only goals are left to try.
        """
        try:
            self._search([rung for rung in rungs if rung not in late], start, late)
            self._last_look()
        except KeyboardInterrupt:
            if not (self.steps and self.alone):
                raise
            self.stopped = LADDER_INTERRUPTED
            return
        except TimeIsOverError:
            self.stopped = NO_MORE_TIME
            self._last_look()

    def _last_look(self) -> None:
        """Look at the best candidate if nobody has; what that takes is not counted as time."""
        self.stop()
        try:
            # A candidate is looked at once: a second look at the same samples would prove nothing more.
            if not self.met and not self.steps[self.chosen].proof:
                self._look(last=True)
        except KeyboardInterrupt:
            if not self.alone:
                raise
            self.stopped = LADDER_INTERRUPTED

    def _search(self, rungs: Sequence[str], start: Candidate, late: Sequence[str]) -> None:
        if self._try(DEFAULT, start):
            return
        was_cut = self._try_rungs(rungs)
        if self.met or self.stopped:
            return
        if self._is_promising() and self._look():
            return  # A higher goal costs time, so that even a look that may fail comes first.
        for name, candidate in self._finer(late):
            if self._is_hopeless():
                return
            try:
                if self._try(name, candidate):
                    return
            except NothingToQuantizeError:
                break  # A higher goal would leave no more.
            except (InvalidOnnxError, StaleCalibrationError):
                continue  # What is left would need ranges of tensors that follow others so far, or an opset.
        self.stopped = NO_MORE_TIME if was_cut else NO_MORE_RUNGS

    def _try_rungs(self, rungs: Sequence[str]) -> bool:
        """Try each rung on top of the best; return whether their share of the time was over before."""
        # Half of the time is kept for layers in float, which almost always help.
        self.allow(SHARE_OF_RUNGS)
        try:
            for rung in rungs:
                # The start may have it already, as the user asked for it.
                if rung in self._best.rungs:
                    continue
                if self.is_over():
                    return True
                if self._has_no_looks() or self._try(rung, Candidate(rungs=(*self._best.rungs, rung))):
                    return False
        except TimeIsOverError:
            return True
        finally:
            self.allow(1.0)
        return False

    def _finer(self, late: Sequence[str]) -> Iterator[tuple[str, Candidate]]:
        """Yield the rungs that are left, and goals, each on top of the best."""
        for rung in late:
            yield rung, replace(self._best, rungs=(*self._best.rungs, rung))
        for goal in goals_above(self._seen.worst_db, self.gate):
            if self._is_last:
                return
            yield f"goal {goal:g} dB", replace(self._best, goal_db=goal)

    def _is_hopeless(self) -> bool:
        if self.is_over():
            self.stopped = NO_MORE_TIME
        return bool(self.stopped) or self._has_no_looks()

    def _has_no_looks(self) -> bool:
        if self._spent and not self._could_be_shown():
            self.stopped = NO_MORE_LOOKS
        return bool(self.stopped)

    def _is_promising(self) -> bool:
        """Tell whether the best keeps its budgets on the samples to choose by, and was not looked at."""
        best = self.steps[self.chosen]
        return not best.proof and self._could_be_shown() and all(check.kept for check in best.checks)

    def _could_be_shown(self) -> bool:
        """Tell whether a look at a model that changes no answer would still show that it does not."""
        level = (LEVEL - self._spent) / 2
        return could_be_shown(self.gate, self._seen.measurements, self.candidates.set_aside, level)

    def _try(self, name: str, candidate: Candidate) -> bool:
        seen = self.candidates.compare(candidate)
        level = (LEVEL - self._spent) / 2
        expected = budget_checks(
            self.gate, seen.measurements, seen.samples, level, expected=self.candidates.set_aside
        )
        kept = not self.steps or seen.sqnr_db > self.steps[self.chosen].sqnr_db
        step = LadderStep(
            name=name,
            sqnr_db=seen.sqnr_db,
            kept=kept,
            checks=expected,
            **vars(candidate),
            **vars(seen.layers),
        )
        self.steps.append(step)
        self._is_last = seen.is_last
        if kept:
            self.chosen, self._best, self._seen = len(self.steps) - 1, candidate, seen
            # Written at once, so that an interrupt leaves the best so far.
            self.candidates.keep(candidate)
            if all_hold(expected):
                self._look()
        self.tell(self.steps[-1])
        return self.met

    def _look(self, *, last: bool = False) -> bool:
        """Look at the held-out samples, for the best candidate; return whether it keeps the budget."""
        left = LEVEL - self._spent
        level = left if last else left / 2
        seen = self.candidates.prove(self._best)
        proof = budget_checks(self.gate, seen.measurements, seen.samples, level)
        # Spent even if the look fails: by Bonferroni all looks together may be wrong in 5 % of cases.
        self._spent += level
        self.steps[self.chosen] = replace(self.steps[self.chosen], proof=proof, level=level)
        self.met = all_hold(proof)
        return self.met

    def advice(self) -> tuple[str, ...]:
        """Advice on how to keep the budget; none if it is kept, or may be by going on."""
        if self.met or self.stopped == LADDER_INTERRUPTED:
            return ()
        best = self.steps[self.chosen]
        return advice_for(best.proof or best.checks, self.candidates.set_aside)


def goals_above(reached_db: float, gate: GateSettings) -> list[float]:
    """SQNR of the worst output to look for, one after the other: first what a budget asks for.

    Example:
        >>> goals_above(17.2, GateSettings(min={"top1_agreement": 0.99}))[:3]
        [21.0, 24.0, 27.0]
        >>> goals_above(17.2, GateSettings(min={"sqnr_db": 30.5}))[:2]
        [31.0, 34.0]
        >>> goals_above(30.8, GateSettings(min={"sqnr_db": 30.5}))[0]
        32.0
    """
    asked = [float(limit) for name, limit in gate.min.items() if name.partition("[")[0] == SQNR]
    # A budget that is reached but not proven needs little more.
    first = max(reached_db + 1.0, *asked) if asked else reached_db + HALF_DB
    found = [math.ceil(first) + HALF_DB * (level - 1) for level in GOALS] if math.isfinite(first) else []
    return [goal for goal in found if goal <= MOST_GOAL_DB]


class TimeIsOverError(Exception):
    """The time budget was over while a candidate was made."""


@dataclass(kw_only=True)
class _Content:
    identity: dict[str, str]
    compared: dict[str, CandidateMeasurement] = field(default_factory=dict)
    proven: dict[str, CandidateMeasurement] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class TuneCheckpoint(_Content):
    """Measurements by candidate, written to a file after each.

    Attributes:
        written: SHA-256 of the candidates that were the best so far and were written.
        stored: whether it is written at all; several processes of torchrun store nothing.
    """

    path: Path
    stored: bool = True

    def save(self) -> None:
        """Write all of it, if it is stored."""
        if self.stored:
            content = _Content(**{item.name: getattr(self, item.name) for item in fields(_Content)})
            write_text(self.path, json.dumps(encode(content), allow_nan=False))


def continued_tuning(path: Path, identity: Mapping[str, str], tell: Tell) -> TuneCheckpoint:
    """Measurements of an earlier tuning, if it is of the same; otherwise none, and tell why."""

    def refusal(found: _Content) -> str:
        other = [name for name, value in identity.items() if found.identity.get(name) != value]
        return f"{other[0]} has changed" if other else ""

    def done(found: _Content) -> str:
        count = len(found.compared)
        return f"{count} candidate{'' if count == 1 else 's'}"

    content = continued(path, "tuning", _read, refusal, done, tell)
    if content is None:
        return TuneCheckpoint(path=path, identity=dict(identity))
    return TuneCheckpoint(path=path, **vars(content))


def _read(path: Path) -> _Content:
    try:
        content: _Content = decode(_Content, strict_json(read_file(path, "checkpoint of a tuning")), "")
    except (ValueError, RecursionError) as error:
        raise ReportError("it is damaged", hint="start again with --set run.restart=true") from error
    return content
