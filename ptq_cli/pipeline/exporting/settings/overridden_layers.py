"""What the overrides of a recipe say of layers: which stay in float, and the modes of the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ptq_cli.amax.overrides import Meant, described, means
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.sections.quantization_sections import ActivationSettings, OverrideSettings


def excluded_layers(
    layers: Mapping[str, Meant], overrides: Sequence[OverrideSettings], target: Target
) -> dict[str, str]:
    """Return the layers that the last override which decides keeps in float.

    Where some are asked for, an operator with a kernel that pays stays float unless it is asked for. What
    only follows, such as a pooling between two of them, follows.
    """
    asks = any(item.quantize for item in overrides)
    decided, found = dict(decided_layers(layers, overrides)), {}
    for name, meant in layers.items():
        last = decided.get(name)
        (op_type,) = meant.ops
        rule = target.op.get(op_type)
        if last is not None and not last.quantize:
            found[name] = f"kept in float: {described(last)}"
        elif last is None and asks and rule is not None and rule.kind in ("compute", "stored"):
            found[name] = "kept in float: it is not one of the layers to include"
    return found


def layer_activations(
    layers: Mapping[str, Meant], general: ActivationSettings, overrides: Sequence[OverrideSettings]
) -> dict[str, ActivationSettings]:
    """Return the settings of the activations that each layer reads: the general ones with its overrides."""
    found = {}
    for name, meant in layers.items():
        settings = general
        for item in overrides:
            own = item.activations
            if own is not None and means(item, meant):
                mode, granularity = own.mode or settings.mode, own.granularity or settings.granularity
                settings = replace(settings, mode=mode, granularity=granularity)
        found[name] = settings
    return found


def with_own_mode(layers: Mapping[str, Meant], overrides: Sequence[OverrideSettings]) -> Iterator[str]:
    """Yield the layers for which an override decides what is done with their activations."""
    deciding = [item for item in overrides if item.activations is not None and item.activations.mode]
    for name, meant in layers.items():
        if any(means(item, meant) for item in deciding):
            yield name


def decided_layers(
    layers: Mapping[str, Meant], overrides: Sequence[OverrideSettings]
) -> Iterator[tuple[str, OverrideSettings]]:
    """Yield the layers that an override selects or keeps in float, with the last that does."""
    deciding = [item for item in overrides if item.quantize is not None]
    for name, meant in layers.items():
        if last := next((item for item in reversed(deciding) if means(item, meant)), None):
            yield name, last
