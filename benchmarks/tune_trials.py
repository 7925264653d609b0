"""How often a budget that is called kept is exceeded, in seeded trials.

*Synthetic*: a trial draws the answers that each candidate loses and gains, on the samples to choose by and on
those set aside, and climbs as the command does. It is broken if the candidate that is called proven has a
larger drop than the budget in the whole population.

*Sample models*: the population is the evaluation data of a model of this repository. Candidates are real
files, made once; what each answers to every sample is known. A trial draws the samples to choose by and
those set aside from it, with replacement.
"""

import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ptq_cli
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.interval import Flips
from ptq_cli.recipe.sections import GateSettings, ImageSettings
from ptq_cli.runtime.session import Session
from ptq_cli.tuning.candidate import Candidate, CandidateMeasurement, TuningSearch
from ptq_cli.tuning.candidate import Candidates as Subject

ROOT = Path(__file__).parent.parent
SAMPLES = ("cifar10_cnn", "spoken_digits_transformer")
SAMPLE_RUNGS = ("round",)
BITS = 3
DRAWN = ((300, 300), (512, 1000))  # Samples to choose by, and held out
SHARES = (0.99, 0.5)  # Budgets, as shares of the default's true drop; and further ones, absolute
BUDGETS = (0.005, 0.01, 0.02)
DRAWN_HEADER = ("model", "budget", "set aside", "called kept", "exceeded", "of 100 trials")
TRIALS = 2000
SAMPLE_TRIALS = 500
COMPARED = 512
FLOAT = 0.9
RUNGS = ("equalize", "smooth", "ranges", "float", "round")
SYNTHETIC = ("true drops over the budget", "budget", "set aside", "called kept", "exceeded", "of 100 trials")
SHAPES = {
    "all candidates 1.01 times": (1.01,) * 9,
    "all candidates 1.5 times": (1.5,) * 9,
    "falling from 4 times to 1.05": tuple(np.linspace(4.0, 1.05, 9).tolist()),
    "falling from 3 times to 0.2": tuple(np.linspace(3.0, 0.2, 9).tolist()),
}
GAINED = 0.5  # Answers gained for each that is lost beyond them, as rounding noise does


@dataclass
class Population:
    """Candidates with known shares of answers lost and gained; each measurement draws new samples."""

    drops: Sequence[float]
    set_aside: int
    random: np.random.Generator
    order: dict[Candidate, int] = field(default_factory=dict)

    def compare(self, candidate: Candidate) -> CandidateMeasurement:
        """Draw the samples to choose by."""
        self.order.setdefault(candidate, len(self.order))
        return self._drawn(candidate, COMPARED)

    def prove(self, candidate: Candidate) -> CandidateMeasurement:
        """Draw the held-out samples."""
        return self._drawn(candidate, self.set_aside)

    def keep(self, candidate: Candidate) -> None:
        """Write nothing."""

    def drop(self, candidate: Candidate) -> float:
        """Return the true drop of a candidate."""
        return self.drops[self.order[candidate]]

    def _drawn(self, candidate: Candidate, samples: int) -> CandidateMeasurement:
        drop = self.drop(candidate)
        shares = [drop * (1 + GAINED), drop * GAINED, 1 - drop * (1 + 2 * GAINED)]
        lost, gained, _ = self.random.multinomial(samples, shares).tolist()
        number = self.order[candidate]
        return seen(samples, lost, gained, 20.0 + number, is_last=number + 1 == len(self.drops))


def seen(samples: int, lost: int, gained: int, sqnr_db: float, *, is_last: bool) -> CandidateMeasurement:
    """Return what so many samples show of a candidate that lost and gained so many answers."""
    top1 = Measurement(
        name="top1",
        unit="share",
        needs_labels=True,
        higher_is_better=True,
        float_value=FLOAT,
        quantized_value=FLOAT - (lost - gained) / samples,
        flips=Flips.counted(samples, lost, gained),
    )
    noise = Measurement(
        name="sqnr_db", unit="decibel", needs_labels=False, higher_is_better=True, quantized_value=sqnr_db
    )
    return CandidateMeasurement(samples, (top1, noise), is_last=is_last)


def searched(candidates: Subject, budget: float, rungs: Sequence[str]) -> tuple[bool, Candidate]:
    """Return whether a search called the budget kept, and what it chose."""
    search = TuningSearch(
        candidates=candidates,
        gate=GateSettings(max_drop={"top1": budget}),
        is_over=lambda: False,
        tell=lambda _step: None,
    )
    search.run(rungs)
    best = search.steps[search.chosen]
    return search.met, Candidate.of(best)


def synthetic_lines() -> Iterator[str]:
    """Yield the table of the synthetic models."""
    yield f"| {' | '.join(SYNTHETIC)} |"
    yield f"|{'---|' * len(SYNTHETIC)}"
    for name, factors in SHAPES.items():
        for budget, set_aside in ((0.01, 512), (0.01, 4000), (0.02, 1000)):
            drops = [budget * factor for factor in factors]
            found = []
            for seed in range(TRIALS):
                subject = Population(drops, set_aside, np.random.default_rng(seed))
                met, chosen = searched(subject, budget, RUNGS)
                found.append((met, met and subject.drop(chosen) > budget))
            yield _line((name, f"{100 * budget:g} points", f"{set_aside:,}"), found)


def _line(first: Sequence[str], found: Sequence[tuple[bool, bool]]) -> str:
    kept, wrong = (sum(values) / len(found) for values in zip(*found, strict=True))
    cells = (*first, f"{kept:.1%}", f"{wrong:.1%}", f"{100 - 100 * wrong:.1f} kept")
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Answers:
    """What a model answers to all samples of a population.

    Attributes:
        right: whether each is answered correctly.
        outputs: of each sample.
    """

    right: npt.NDArray[np.bool_]
    outputs: npt.NDArray[np.float64]


class Candidates:
    """Candidates of a sample model as files, made when they are asked for, and their answers."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        """Calibrate."""
        self._recipe, self._run = folder / "ptq.toml", scratch / "run"
        ptq_cli.calibrate(recipe=self._recipe, run=self._run, recover=["none"])
        settings = tomllib.loads(self._recipe.read_text("utf-8"))
        source = str(folder / settings["evaluation"]["data"])
        batches = list(open_dataset(source, ImageSettings(**settings.get("image", {}))).batches(64))
        self._feeds = [batch.inputs for batch in batches]
        self._labels = np.concatenate([np.asarray(batch.labels) for batch in batches])
        self.exact = self._answers(self._run / "model.float.onnx")
        self._made: dict[Candidate, Answers] = {}
        self.last: set[Candidate] = set()

    @property
    def samples(self) -> int:
        """How many the population has."""
        return len(self._labels)

    def of(self, candidate: Candidate) -> Answers:
        """Return what a candidate answers."""
        if candidate not in self._made:
            path = self._run.parent / "candidate.onnx"
            goal = candidate.goal_db
            rungs = [*candidate.rungs, *(["float"] if goal is not None else [])] or ["none"]
            more: dict[str, Any] = {"goal_db": goal} if goal is not None else {}
            made = ptq_cli.export(run=self._run, output=path, recover=rungs, weight_bits=BITS, **more)
            if goal is not None and (made.accuracy is None or made.accuracy.sqnr_db < goal):
                self.last.add(candidate)
            self._made[candidate] = self._answers(path)
        return self._made[candidate]

    def drop(self, candidate: Candidate) -> float:
        """Return how much of its top-1 a candidate loses in the population."""
        return float(np.mean(self.exact.right) - np.mean(self.of(candidate).right))

    def _answers(self, path: Path) -> Answers:
        session = Session(path, threads=1)
        only = session.inputs[0].name  # Images have no name of their own.
        feeds = ({name or only: array for name, array in feed.items()} for feed in self._feeds)
        outputs = np.concatenate([session.run(feed)[0] for feed in feeds]).astype(np.float64)
        return Answers(np.argmax(outputs, axis=-1) == self._labels, outputs)


@dataclass
class Drawn:
    """Samples of a population, drawn with replacement: some to choose by, some set aside."""

    candidates: Candidates
    compared: npt.NDArray[np.int64]
    aside: npt.NDArray[np.int64]

    @property
    def set_aside(self) -> int:
        """How many samples the budget is proven on."""
        return len(self.aside)

    def compare(self, candidate: Candidate) -> CandidateMeasurement:
        """Return what the samples to choose by show."""
        return self._seen(candidate, self.compared)

    def prove(self, candidate: Candidate) -> CandidateMeasurement:
        """Return what the held-out samples show."""
        return self._seen(candidate, self.aside)

    def keep(self, candidate: Candidate) -> None:
        """Write nothing."""

    def _seen(self, candidate: Candidate, chosen: npt.NDArray[np.int64]) -> CandidateMeasurement:
        exact, found = self.candidates.exact, self.candidates.of(candidate)
        lost = int(np.sum(exact.right[chosen] & ~found.right[chosen]))
        gained = int(np.sum(~exact.right[chosen] & found.right[chosen]))
        noise = np.sum((exact.outputs[chosen] - found.outputs[chosen]) ** 2)
        signal = np.sum(exact.outputs[chosen] ** 2)
        sqnr = float(10 * np.log10(signal / noise))
        return seen(len(chosen), lost, gained, sqnr, is_last=candidate in self.candidates.last)


def sample_lines(names: Sequence[str] = SAMPLES) -> Iterator[str]:
    """Yield the table of some sample models."""
    yield f"| {' | '.join(DRAWN_HEADER)} |"
    yield f"|{'---|' * len(DRAWN_HEADER)}"
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            candidates = Candidates(ROOT / "sample_models" / name, Path(scratch))
            yield from _drawn_lines(name, candidates)


def _drawn_lines(name: str, candidates: Candidates) -> Iterator[str]:
    default = candidates.drop(Candidate())
    near = [default * share for share in SHARES if default * share > 0.0]
    for budget in sorted({*near, *BUDGETS}):
        for compared, aside in DRAWN:
            found = []
            for seed in range(SAMPLE_TRIALS):
                random = np.random.default_rng(seed)
                parts = [random.integers(candidates.samples, size=size) for size in (compared, aside)]
                met, chosen = searched(Drawn(candidates, *parts), budget, SAMPLE_RUNGS)
                found.append((met, met and candidates.drop(chosen) > budget + 1e-12))
            of_default = f" ({budget / default:.0%} of the default's drop)" if budget in near else ""
            yield _line((name, f"{100 * budget:.2g} points{of_default}", f"{aside:,}"), found)
