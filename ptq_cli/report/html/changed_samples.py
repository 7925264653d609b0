"""Samples that changed their class: counts by effect and pair of classes, and a row for each."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ptq_cli.evaluation.document.details import ChangedSample, Changes

MOST_SHOWN = 200
EFFECTS = ("lost", "gained", "still wrong", "changed")


def change_view(changes: Changes) -> dict[str, Any]:
    """Counts of the changes by effect and by pair of classes, and the samples.

    Edge case: Counts by effect and by pair cover the samples that the details hold: the first thousand.

    Example:
        >>> lost = ChangedSample(index=0, name="a.png", label=0, float_class=0, quantized_class=1)
        >>> view = change_view(Changes(1, ("cat", "dog"), (lost,)))
        >>> view["effects"], view["pairs"], view["rows"] == [(lost, "cat", "cat", "dog")]
        ([('lost', 1)], [('cat', 'dog', 1, 1, 0)], True)
    """
    samples = changes.samples
    effects = Counter(sample.effect for sample in samples)
    listed = sorted(
        samples, key=lambda sample: (EFFECTS.index(sample.effect), not sample.picture, sample.index)
    )

    def named(index: int | None) -> str:
        if index is None:
            return ""
        return changes.class_names[index] if index < len(changes.class_names) else str(index)

    return {
        "total": changes.total,
        "effects": [(effect, effects[effect]) for effect in EFFECTS if effects[effect]],
        "pairs": [
            (named(before), named(after), len(found), found.count("lost"), found.count("gained"))
            for (before, after), found in _by_pair(samples)[:MOST_SHOWN]
        ],
        "rows": [
            (item, named(item.label), named(item.float_class), named(item.quantized_class))
            for item in listed[:MOST_SHOWN]
        ],
        "left_out": changes.total - min(len(listed), MOST_SHOWN),
    }


def _by_pair(samples: Sequence[ChangedSample]) -> list[tuple[tuple[int, int], list[str]]]:
    """Effects of each pair of classes, the most frequent pair first."""
    found: dict[tuple[int, int], list[str]] = {}
    for sample in samples:
        found.setdefault((sample.float_class, sample.quantized_class), []).append(sample.effect)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
