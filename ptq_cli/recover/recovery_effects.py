"""What recovery did to a model, rung by rung."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ptq_cli.core.documents import rounded
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recipe.declaration import BITS
from ptq_cli.recover.float_moves import LayerMove
from ptq_cli.recover.output_noise import MetricGain, gain_in_words

LITTLE = 0.1  # dB: a smaller gain has to be sure


@dataclass(frozen=True, kw_only=True)
class Rescaling:
    """What a rung did to the channels of a float model."""

    rung: Annotated[str, "Its name."]
    kept: Annotated[bool, "Whether the model has the factors."] = False
    groups: Annotated[int, "How many groups of channels got factors, or would have."] = 0
    possible: Annotated[int, "How many could have."] = 0
    before: Annotated[float, "SQNR of the output without it on the held-out samples, in dB."] = float("nan")
    after: Annotated[float, "SQNR of the output with it on the held-out samples, in dB."] = float("nan")
    gain: Annotated[
        tuple[float, float], "The ends of the 95 % interval of the gain, in dB, of pieces of these samples."
    ] = (float("nan"), float("nan"))
    samples: Annotated[int, "How many samples ranges were taken from."] = 0
    decided_by: Annotated[int, "How many samples were held out."] = 0
    difference: Annotated[float, "Of the float model's outputs, as a share of their largest value."] = 0.0
    strengths: Annotated[
        Mapping[str, float] | None, "Of each group, by the layer that makes its channels."
    ] = None
    reason: Annotated[str, "Why nothing was done, if that is not for want of gain."] = ""
    is_limited: Annotated[bool, "Whether the limit of memory is that reason."] = False
    metric: Annotated[
        MetricGain | None, "Of the metric that the recipe limits, where these samples tell it."
    ] = None

    def values(self) -> dict[str, object]:
        """Return it for JSON, and for the metadata of a model; an SQNR that is not finite is null."""
        found = {
            "rung": self.rung,
            "kept": self.kept,
            "groups": self.groups,
            "possible": self.possible,
            "sqnr_db": [rounded(self.before), rounded(self.after)],
            "samples": self.samples,
            "decided_by": self.decided_by,
            "difference": float(f"{self.difference:.3g}"),
            "strengths": dict(self.strengths or {}),
            "reason": self.reason,
        }
        return found if self.metric is None else found | {"metric": self.metric.values()}

    def describe(self) -> str:
        """Say what was done, or why nothing was, in a line.

        Example:
            >>> gain = {"before": 8.57, "after": 37.06, "decided_by": 32}
            >>> Rescaling(rung="equalize", kept=True, groups=9, **gain).describe()
            'equalize: 9 groups of channels; output SQNR from 8.6 to 37.1 dB on 32 held-out samples'
            >>> Rescaling(rung="smooth").describe()
            'note: smooth changed nothing: the model has no channels that it could change'
        """
        change, metric = self._change(), self.metric
        if self.kept:
            groups = f"{self.groups} group{'' if self.groups == 1 else 's'} of channels"
            return f"{self.rung}: {groups}; {change}"
        reason = self.reason
        if not reason and self.groups:
            is_more = self.after > self.before and (metric is None or not metric.is_sure)
            helped = f"gained less than {LITTLE} dB, which may be chance" if is_more else "did not help"
            reason = f"it {helped}, so it was not kept ({change})"
        elif not reason and self.possible:
            reason = "no group of channels would lose enough of its error"
        return (
            f"note: {self.rung} changed nothing: {reason or 'the model has no channels that it could change'}"
        )

    def _change(self) -> str:
        """Say the gain that decided: in SQNR, or in the metric where that tells a gain from a loss."""
        samples = f"{self.decided_by} held-out sample{'' if self.decided_by == 1 else 's'}"
        if self.metric is not None and self.metric.is_sure:
            return gain_in_words(self.metric, samples)
        change = f"output SQNR from {self.before:.1f} to {self.after:.1f} dB on {samples}"
        low, high = self.gain
        if self.kept and low <= 0.0:
            # A gain that may be chance is kept, as it is likelier than a loss, and told as what it is.
            change += f", a gain of {low:.1f} to {high:.1f} dB with 95 % confidence"
        return change if self.metric is None else f"{change}; {gain_in_words(self.metric)}"


@dataclass(frozen=True, kw_only=True)
class LayerRecovery:
    """What a rung changed at a layer."""

    before: Annotated[float, "Noise of its output before, as a share of what the output varies by."]
    after: Annotated[float, "Noise of its output after, on the same samples that were learned from."]


@dataclass(frozen=True, kw_only=True)
class RungEffect:
    """What a rung of recovery did to a model."""

    rung: Annotated[str, "Its name."]
    changed: Annotated[bool, "Whether it found any other integer, scale or bias than there were."]
    kept: Annotated[
        bool, "Whether the output was better for it on the samples that judge; otherwise nothing was changed."
    ]
    before: Annotated[float, "SQNR of the output without it on the samples that judge, in dB."]
    after: Annotated[float, "SQNR of the output with it on them."]
    samples: Annotated[int, "How many samples were learned from."]
    decided_by: Annotated[int, "How many samples judge; those held out are among them."]
    layers: Annotated[Mapping[str, LayerRecovery], "What changed, by the layer's name."]
    refused: Annotated[Mapping[str, str], "Why the others stayed as they were."]
    damped: Annotated[
        tuple[str, ...],
        "Layers with fewer rows of data than inputs, which stay closer to the float model's weights.",
    ]
    more_bits: Annotated[Mapping[str, int], "Layers whose weights got more bits, with how many."] = field(
        default_factory=dict
    )
    zero_points: Annotated[bool, "Whether blocks got zero points that nobody asked for."] = False

    def table(self) -> dict[str, Any]:
        """Return it for JSON.

        JSON has no infinity: an SQNR without noise, or of NaN, is null.
        """
        found = {
            "rung": self.rung,
            "kept": self.kept,
            "sqnr_db": [rounded(self.before), rounded(self.after)],
            "samples": self.samples,
            "decided_by": self.decided_by,
            "layers": {name: [item.before, item.after] for name, item in self.layers.items()},
            "refused": dict(self.refused),
            "damped": list(self.damped),
        }
        more = {"more_bits": dict(self.more_bits), "zero_points": self.zero_points}
        return found | (more if self.rung == BITS else {})


@dataclass(frozen=True)
class Recovery:
    """What recovery did to a model."""

    effects: Annotated[tuple[RungEffect, ...], "Of each rung, in the order in which they ran."]
    interrupted: Annotated[bool, "Whether Ctrl-C ended it; the same command then continues."] = False

    @property
    def kept(self) -> bool:
        """Whether any rung was kept."""
        return any(effect.kept for effect in self.effects)

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model."""
        return json.dumps([effect.table() for effect in self.effects])


@dataclass(frozen=True, kw_only=True)
class RangesByEffect:
    """What the rung did."""

    kept: Annotated[
        bool, "Whether the output was better for it on the samples that judge; otherwise nothing was changed."
    ]
    before: Annotated[float, "SQNR of the outputs on these, without it, in dB."]
    after: Annotated[float, "With it; the same if nothing is better."]
    samples: Annotated[int, "How many samples were measured on."]
    decided_by: Annotated[int, "How many samples judge."]
    tensors: Annotated[int, "How many had a choice."]
    methods: Annotated[
        Mapping[str, str], "What was chosen, by tensor, where it is not the recipe's method."
    ] = field(default_factory=dict)
    within: Annotated[
        Mapping[str, tuple[float, float]],
        "Where ranges end because no reader tells values beyond apart, by tensor; infinite where none ends.",
    ] = field(default_factory=dict)

    @property
    def reached(self) -> float:
        """SQNR of the outputs on the held-out samples with what was kept, in dB."""
        return self.after if self.kept else self.before

    @property
    def changed(self) -> int:
        """How many tensors have another range than the recipe's method gives."""
        return len(self.methods.keys() | self.within.keys())

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model; an SQNR that is not finite is null."""
        sqnr = [rounded(value) for value in (self.before, self.after)]
        return json.dumps(
            {
                "kept": self.kept,
                "sqnr_db": sqnr,
                "samples": self.samples,
                "decided_by": self.decided_by,
                "methods": dict(self.methods),
                "within": {source: list(map(rounded, ends)) for source, ends in self.within.items()},
            }
        )


@dataclass(frozen=True, kw_only=True)
class FloatLayers:
    """What the rung did."""

    layers: Annotated[tuple[str, ...], "Layers that it left in float, those that gain the most first."] = ()
    dynamic: Annotated[
        tuple[str, ...], "Layers for which it had ranges found at each run, those that gain the most first."
    ] = ()
    wide: Annotated[tuple[str, ...], "Activations to which it gave 16 bits."] = ()
    more_bits: Annotated[tuple[str, ...], "Layers whose weights it gave 8 bits."] = ()
    before: Annotated[
        float,
        "SQNR of the worst output, without what weights lose that stay integers in the file.",
    ]
    after: Annotated[float, "SQNR of the worst output with these."]
    with_weights: Annotated[bool, "Whether both are with what the weights lose."] = False
    weights_lose: Annotated[float, "By how many dB the weights lower it before; 0 if it is enough."] = 0.0
    decided_by: Annotated[int, "How many samples that was measured on."]
    slower: Annotated[
        float | None,
        "Share of its time that the model takes longer for them, by an estimate; null if that is not known.",
    ] = 0.0
    reached: Annotated[float, "SQNR of the file's worst output, where that is below 22 dB; or NaN."] = (
        math.nan
    )

    @property
    def move(self) -> LayerMove:
        """What it changed."""
        return LayerMove(self.layers, self.dynamic, self.wide, self.more_bits)

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model."""
        sqnr = [rounded(self.before), rounded(self.after)]
        found: dict[str, object] = {"layers": self.layers, "dynamic": self.dynamic, "sqnr_db": sqnr}
        found |= {"wide": self.wide} if self.wide else {}
        found |= {"more_bits": self.more_bits} if self.more_bits else {}
        found |= {"slower": round(self.slower, 4) if self.slower is not None else None}
        found |= {"samples": self.decided_by, "reached_db": rounded(self.reached)}
        return json.dumps(found)


@dataclass(frozen=True, kw_only=True)
class ReachedAccuracy:
    """How near a quantized file's outputs are to the float model's, on calibration data."""

    sqnr_db: Annotated[float, "SQNR of the worst output, in dB."]
    goal_db: Annotated[float, "What it should have."]
    samples: Annotated[int, "How many samples that was measured on."]


@dataclass(frozen=True, kw_only=True)
class ChosenForms:
    """What was measured of a model as it is, and the forms that its recurrent layers got.

    Attributes:
        before, after: SQNR of the worst output, in dB, on ``samples`` of the calibration data.
        forms: by the layer's name, where one is not in integers.
    """

    before: float
    after: float
    samples: int
    forms: Mapping[str, str]
    goal_db: float

    @property
    def is_enough(self) -> bool:
        """Whether nothing else has to be improved."""
        return self.after >= self.goal_db


def recovered_db(origin: Mapping[str, str]) -> dict[str, float]:
    """Return the SQNR of the output of each layer that recovery kept a weight for, from a file's metadata."""
    found: dict[str, float] = {}
    try:
        for rung in json.loads(origin.get(MetadataKey.RECOVERY, "[]")):
            for name, (_, noise) in rung["layers"].items() if rung["kept"] else ():
                found[name] = -10.0 * math.log10(noise) if noise > 0.0 else math.inf
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}  # An edited file only loses this knowledge.
    return found
