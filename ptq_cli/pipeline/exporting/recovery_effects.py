"""What recovery did to a model, rung by rung."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LayerRecovery:
    """What a rung changed at a layer.

    Attributes:
        before, after: noise of its output, as a share of what the output varies by, on the samples that
            were learned from.
    """

    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class RungEffect:
    """What a rung of recovery did to a model.

    Attributes:
        rung: its name.
        changed: whether it found any other integer, scale or bias than there were.
        kept: whether the output was better for it on the held-out samples; otherwise nothing was changed.
            Without data, from moments alone, what was changed is kept.
        before, after: SQNR of the output on these, in dB; NaN if there were none.
        samples, decided_by: how many samples were learned from, and held out.
        layers: what changed, by the layer's name.
        refused: why the others stayed as they were.
        damped: layers with fewer rows of data than inputs, which stay closer to the float model's weights.
    """

    rung: str
    changed: bool
    kept: bool
    before: float
    after: float
    samples: int
    decided_by: int
    layers: Mapping[str, LayerRecovery]
    refused: Mapping[str, str]
    damped: tuple[str, ...]

    def table(self) -> dict[str, Any]:
        """Return it for JSON.

        Edge case:
            JSON has no infinity: an SQNR without noise, or of NaN, is null.
        """
        return {
            "rung": self.rung,
            "kept": self.kept,
            "sqnr_db": [_finite(self.before), _finite(self.after)],
            "samples": self.samples,
            "decided_by": self.decided_by,
            "layers": {name: [item.before, item.after] for name, item in self.layers.items()},
            "refused": dict(self.refused),
            "damped": list(self.damped),
        }


@dataclass(frozen=True)
class Recovery:
    """What recovery did to a model.

    Attributes:
        effects: of each rung, in the order in which they ran.
    """

    effects: tuple[RungEffect, ...]

    @property
    def kept(self) -> bool:
        """Whether any rung was kept."""
        return any(effect.kept for effect in self.effects)

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model."""
        return json.dumps([effect.table() for effect in self.effects])


def _finite(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
