"""How often a budget that ``ptq tune`` calls kept is exceeded: on synthetic models, whose true drop is known.

python -m benchmarks.tune            print the table
python -m benchmarks.tune --write    also write it to benchmarks/RESULTS.md

A trial draws the answers that each candidate loses and gains, on the samples to choose by and on those set
aside, and climbs as the command does. It is broken if the candidate that is called proven has a larger drop
than the budget in the whole population.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ptq_cli.pipeline.tuning.climb import Candidate, Climb, Seen
from ptq_cli.recipe.schema import GateSettings
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.intervals.flips import Flips
from tools.marked import write_part

RESULTS = Path(__file__).parent / "RESULTS.md"
TRIALS = 2000
COMPARED = 512
FLOAT = 0.9
RUNGS = ("equalize", "smooth", "ranges", "weighed", "round")
FLOATS = (("a",), ("a", "b"), ("a", "b", "c"))
HEADER = ("true drops over the budget", "budget", "set aside", "called kept", "exceeded", "of 100 trials")
SHAPES = {
    "all candidates 1.01 times": (1.01,) * 9,
    "all candidates 1.5 times": (1.5,) * 9,
    "falling from 4 times to 1.05": tuple(np.linspace(4.0, 1.05, 9).tolist()),
    "falling from 3 times to 0.2": tuple(np.linspace(3.0, 0.2, 9).tolist()),
}
GAINED = 0.5
"""Answers gained for each that is lost beyond them, as rounding noise does."""


@dataclass
class Population:
    """Candidates with known shares of answers lost and gained; each measurement draws new samples."""

    drops: Sequence[float]
    set_aside: int
    random: np.random.Generator
    order: dict[Candidate, int] = field(default_factory=dict)

    def compare(self, candidate: Candidate) -> Seen:
        """Draw the samples to choose by."""
        self.order.setdefault(candidate, len(self.order))
        return self._drawn(candidate, COMPARED)

    def prove(self, candidate: Candidate) -> Seen:
        """Draw the samples set aside."""
        return self._drawn(candidate, self.set_aside)

    def wide_activations(self, candidate: Candidate) -> Sequence[tuple[str, ...]]:
        """Return none: the target has no 16 bits."""
        del candidate
        return ()

    def float_layers(self, candidate: Candidate) -> Sequence[tuple[str, ...]]:
        """Return three sets of layers."""
        del candidate
        return FLOATS

    def keep(self, candidate: Candidate) -> None:
        """Write nothing."""

    def drop(self, candidate: Candidate) -> float:
        """Return the true drop of a candidate."""
        return self.drops[self.order[candidate]]

    def _drawn(self, candidate: Candidate, samples: int) -> Seen:
        drop = self.drop(candidate)
        shares = [drop * (1 + GAINED), drop * GAINED, 1 - drop * (1 + 2 * GAINED)]
        lost, gained, _ = self.random.multinomial(samples, shares).tolist()
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
            name="sqnr_db",
            unit="decibel",
            needs_labels=False,
            higher_is_better=True,
            quantized_value=20.0 + self.order[candidate],
        )
        return Seen(samples, (top1, noise))


def trial(seed: int, drops: Sequence[float], budget: float, set_aside: int) -> tuple[bool, bool]:
    """Return whether a climb called the budget kept, and whether that is wrong."""
    subject = Population(drops, set_aside, np.random.default_rng(seed))
    climb = Climb(
        subject=subject,
        gate=GateSettings(max_drop={"top1": budget}),
        is_over=lambda: False,
        tell=lambda _step: None,
    )
    climb.up(RUNGS)
    best = climb.steps[climb.chosen]
    exceeded = subject.drop(Candidate(best.rungs, best.in_float)) > budget
    return climb.met, climb.met and exceeded


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = argparse.ArgumentParser(description="Count budgets that are called kept and are exceeded.")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    lines = [f"| {' | '.join(HEADER)} |", f"| {' | '.join('---' for _ in HEADER)} |"]
    for name, factors in SHAPES.items():
        for budget, set_aside in ((0.01, 512), (0.01, 4000), (0.02, 1000)):
            drops = [budget * factor for factor in factors]
            found = [trial(seed, drops, budget, set_aside) for seed in range(TRIALS)]
            kept, wrong = (sum(values) / TRIALS for values in zip(*found, strict=True))
            cells = (name, f"{100 * budget:g} points", f"{set_aside:,}", f"{kept:.1%}", f"{wrong:.1%}")
            lines.append(f"| {' | '.join(cells)} | {100 - 100 * wrong:.1f} kept |")
    text = "\n".join(lines)
    print(text)
    if arguments.write:
        write_part(RESULTS, "tuning", text)


if __name__ == "__main__":
    main()
