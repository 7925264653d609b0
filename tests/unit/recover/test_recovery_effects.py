"""What recovery did, as the metadata of a file have it."""

import json
import math

from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recover.recovery_effects import (
    LayerRecovery,
    RangesByEffect,
    Recovery,
    RungEffect,
    recovered_db,
)
from tests.each_case import each_case


def effect(*, kept: bool) -> RungEffect:
    layers = {"fc": LayerRecovery(before=0.1, after=0.01), "exact": LayerRecovery(before=0.1, after=0.0)}
    return RungEffect(
        rung="round",
        changed=True,
        kept=kept,
        before=math.inf,
        after=20.0,
        samples=8,
        decided_by=3,
        layers=layers,
        refused={"lut": "no"},
        damped=("fc",),
    )


def test_layers_of_a_kept_rung_are_read_back() -> None:
    text = Recovery((effect(kept=True),)).metadata()
    (told,) = json.loads(text)
    assert told == {
        "rung": "round",
        "kept": True,
        "sqnr_db": [None, 20.0],
        "samples": 8,
        "decided_by": 3,
        "layers": {"fc": [0.1, 0.01], "exact": [0.1, 0.0]},
        "refused": {"lut": "no"},
        "damped": ["fc"],
    }
    assert recovered_db({MetadataKey.RECOVERY: text}) == {"fc": 20.0, "exact": math.inf}
    assert recovered_db({MetadataKey.RECOVERY: Recovery((effect(kept=False),)).metadata()}) == {}


@each_case("text", ["[", "[1]", '[{"kept": true, "layers": {"a": 3}}]', "{}", "[" * 100_000])
def test_edited_metadata_only_lose_this_knowledge(text: str) -> None:
    assert recovered_db({MetadataKey.RECOVERY: text}) == {}


def test_ranges_count_each_tensor_once_and_an_open_end_is_null() -> None:
    found = RangesByEffect(
        kept=False,
        before=10.0,
        after=10.05,
        samples=16,
        decided_by=8,
        tensors=3,
        methods={"a": "max"},
        within={"a": (-3.0, math.inf), "b": (0.0, 1.0)},
    )
    assert (found.changed, found.reached) == (2, 10.0)
    assert json.loads(found.metadata())["within"] == {"a": [-3.0, None], "b": [0.0, 1.0]}
