"""What recovery did to a model, rung by rung."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ptq_cli.core.documents import rounded
from ptq_cli.qdq.metadata import RECOVERY


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
        bool,
        "Whether the output was better for it on the samples that judge; otherwise nothing was changed.",
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

    def table(self) -> dict[str, Any]:
        """Return it for JSON.

        JSON has no infinity: an SQNR without noise, or of NaN, is null.
        """
        return {
            "rung": self.rung,
            "kept": self.kept,
            "sqnr_db": [rounded(self.before), rounded(self.after)],
            "samples": self.samples,
            "decided_by": self.decided_by,
            "layers": {name: [item.before, item.after] for name, item in self.layers.items()},
            "refused": dict(self.refused),
            "damped": list(self.damped),
        }


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


def recovered_db(origin: Mapping[str, str]) -> dict[str, float]:
    """Return the SQNR of the output of each layer that recovery kept a weight for, from a file's metadata."""
    found: dict[str, float] = {}
    try:
        for rung in json.loads(origin.get(RECOVERY, "[]")):
            for name, (_, noise) in rung["layers"].items() if rung["kept"] else ():
                found[name] = -10.0 * math.log10(noise) if noise > 0.0 else math.inf
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}  # An edited file only loses this knowledge.
    return found
