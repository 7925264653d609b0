"""Whether what a processor gave for the cases of a pack is right."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from tools.processors.exact import Numbers
from tools.processors.packs import TOLERANCE, WRITTEN, FailedError

AS_FAR = 4.0
"""How many times as far from this machine as the graph as it is written a processor may be: which values are
rounded otherwise is chance, and in a network each of them moves others. What saturates is much farther."""
STEPS = 255
"""Of 8 bits over the range of an output: rounding outputs to them always passes."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one case on one processor.

    Attributes:
        case: its name.
        kernels: how many it has; 0 of a whole file.
        differing: how many of them, or of the outputs of a file, are not right.
        text: what was found.
        seconds: that it took on the processor.
    """

    case: str
    kernels: int
    differing: int
    text: str
    seconds: float


def judge(pack: Path, answer: Path) -> list[Verdict]:
    """Return a verdict on each case of a pack."""
    given, about = _read(answer)
    seconds, verdicts = json.loads(about["seconds"]), []
    for folder in sorted((pack / "cases").iterdir()):
        expected, titles = _read(folder / "expected.safetensors")
        own = {}
        for key, array in expected.items():
            if not key.endswith((TOLERANCE, WRITTEN)):
                found = given.get(f"{folder.name}:{key}")
                if found is None or found.shape != array.shape:
                    raise FailedError(f"{folder.name} gave no '{key}' of the shape {array.shape}")
                own[key] = found
        differing, text = _judge_kernels(expected, own, titles) if titles else _judge_file(expected, own)
        verdicts.append(
            Verdict(
                case=folder.name,
                kernels=len(titles),
                differing=differing,
                text=text,
                seconds=seconds[folder.name],
            )
        )
    return verdicts


def _judge_kernels(
    expected: Mapping[str, Numbers], given: Mapping[str, Numbers], titles: Mapping[str, str]
) -> tuple[int, str]:
    """Compare each kernel's outputs of all runs, within tolerances of their own."""
    wrong, near = set(), set()
    for key, array in given.items():
        name, tolerance = key.partition(":")[2], expected[f"{key}{TOLERANCE}"]
        apart = np.abs(array.astype(np.float64) - expected[key])
        if not np.all(apart <= tolerance):
            wrong.add(name)
        elif tolerance.ndim == 0 and apart.any():
            near.add(name)
    operators = Counter(titles[name].partition(" ")[0] for name in wrong)
    if wrong:
        return len(wrong), ", ".join(f"{count} {operator}" for operator, count in operators.most_common())
    return 0, f"{len(near)} up to a step apart" if near else ""


def _judge_file(expected: Mapping[str, Numbers], given: Mapping[str, Numbers]) -> tuple[int, str]:
    """Compare each output of a file: as near as rounding explains, and the same largest value of each row."""
    wrong, texts = 0, []
    for name in dict.fromkeys(key.partition(":")[2] for key in given):
        keys = [key for key in given if key.partition(":")[2] == name]
        here = _rows([expected[key] for key in keys])
        there = _rows([given[key] for key in keys])
        written = _rows([expected[f"{key}{WRITTEN}"] for key in keys])
        step = np.ptp(here) / STEPS
        limit = max(AS_FAR * _rms(written - here), step / np.sqrt(12))
        near_tie = max(AS_FAR * np.abs(written - here).max(), step)
        best = there.argmax(axis=-1)[:, None]
        lost = here.max(axis=-1) - np.take_along_axis(here, best, axis=-1)[:, 0]
        same = lost == 0
        passed = _rms(there - here) <= limit and np.all(lost <= near_tie)
        wrong += not passed
        if not np.array_equal(here, there):
            nearness = f"{_decibels(here, there - here)}, as written {_decibels(here, written - here)}"
            texts.append(f"{nearness}; top-1 {np.count_nonzero(same)} of {len(same)}")
    return wrong, "; ".join(texts)


def _rows(arrays: list[Numbers]) -> Numbers:
    """Return outputs of all runs as rows of their last axis."""
    return np.concatenate(
        [np.atleast_2d(array.astype(np.float64)).reshape(-1, array.shape[-1]) for array in arrays]
    )


def _rms(array: Numbers) -> float:
    return float(np.sqrt(np.mean(np.square(array))))


def _decibels(signal: Numbers, noise: Numbers) -> str:
    return f"{20 * np.log10(_rms(signal) / _rms(noise)):.1f} dB" if np.any(noise) else "equal"


def _read(path: Path) -> tuple[dict[str, Numbers], dict[str, str]]:
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        return tensors, file.metadata() or {}
