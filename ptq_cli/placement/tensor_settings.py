"""Which settings hold for which tensor and layer: the recipe's, changed by its overrides."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import onnx_ir as ir

from ptq_cli.amax.method_registry import AUTO_METHOD
from ptq_cli.amax.overrides import Meant, OverridesByName, described, require_matches, settings_for
from ptq_cli.models.graph_reading import constant_shape, every_node, names_around
from ptq_cli.placement.target_limits import (
    block_rule,
    require_activation,
    require_blocks,
    require_weight,
    shorter_block,
    unread_blocks,
    within_bits,
)
from ptq_cli.plan.embedding_tables import table_sites
from ptq_cli.plan.refusals import Rules, clamp_behind
from ptq_cli.plan.sites import ActivationSite, Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.check import activation_family, overridden, weight_family
from ptq_cli.recipe.declaration import DYNAMIC, FLOAT, STATIC
from ptq_cli.recipe.quantizer_families import ActivationFamily, ScaledActivations, ScaledWeights, WeightFamily
from ptq_cli.recipe.recovery_rungs import granularity_of, mode_of
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import (
    FLOAT32,
    SIZE,
    ActivationSettings,
    AmaxSettings,
    OverrideSettings,
    WeightSettings,
)


def meant_activations(model: ir.Model, plan: Plan, rules: Rules) -> dict[str, Meant]:
    """Return the names and operator types of each activation, by the tensor whose statistics decide."""
    around = names_around(model.graph)
    producers = {value.name: node for node in every_node(model.graph) for value in node.outputs}
    names: dict[str, dict[str, None]] = {}
    ops: dict[str, dict[str, None]] = {}
    for site in plan.activations.values():
        for tensor in (site.source, site.tensor):
            known, types = names.setdefault(site.source, {}), ops.setdefault(site.source, {})
            known[tensor] = None
            for node in _computing(producers.get(tensor), rules):
                known |= dict.fromkeys([*filter(None, [node.name]), *around.get(node.name or "", ())])
                types[node.op_type] = None
    return {source: Meant(tuple(known), tuple(ops[source])) for source, known in names.items()}


def _computing(node: ir.Node | None, rules: Rules) -> list[ir.Node]:
    """Return the node that computes a tensor, and the one that it is part of, as a Relu of a Conv."""
    if node is None:
        return []
    before = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return [node, before] if before is not None and clamp_behind(before, rules) is node else [node]


def meant_weights(model: ir.Model, sites: Sequence[WeightSite]) -> dict[WeightSite, Meant]:
    """Return the names and operator types of each weight: its own name, and its layer's."""
    ops = {node.name: node.op_type for node in every_node(model.graph)}
    around = names_around(model.graph)
    return {
        site: Meant((site.tensor, site.node, *around.get(site.node, ())), (ops[site.node],)) for site in sites
    }


def meant_layers(model: ir.Model) -> dict[str, Meant]:
    """Return the names of each layer: its own, and those of its outputs and of the layers around it."""
    found, around = {}, names_around(model.graph)
    for node in every_node(model.graph):
        names = [node.name, *(item.name for item in node.outputs), *around.get(node.name or "", ())]
        found[node.name or ""] = Meant(tuple(filter(None, names)), (node.op_type,))
    return found


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
    found, by_name = {}, OverridesByName(overrides)
    for name, meant in layers.items():
        settings = general
        for item in by_name.of(meant):
            own = item.activations
            if own is not None:
                mode, granularity = own.mode or settings.mode, own.granularity or settings.granularity
                settings = replace(settings, mode=mode, granularity=granularity)
        found[name] = settings
    return found


def with_own_mode(layers: Mapping[str, Meant], overrides: Sequence[OverrideSettings]) -> Iterator[str]:
    """Yield the layers for which an override decides what is done with their activations."""
    deciding = OverridesByName(item for item in overrides if item.activations and item.activations.mode)
    for name, meant in layers.items():
        if deciding.of(meant):
            yield name


def decided_layers(
    layers: Mapping[str, Meant], overrides: Sequence[OverrideSettings]
) -> Iterator[tuple[str, OverrideSettings]]:
    """Yield the layers that an override selects or keeps in float, with the last that does."""
    deciding = OverridesByName(item for item in overrides if item.quantize is not None)
    for name, meant in layers.items():
        if found := deciding.of(meant):
            yield name, found[-1]


_Names = tuple[str, ...]
_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class TensorRecipe:
    """What a recipe says of how tensors are quantized; of several overrides that match, the later wins.

    Attributes:
        faster: layers that stay float for speed or accuracy, with the reason.
        dynamic: more layers whose ranges are found at each run, with what shares a scale.
        products: layers that compute in float with weights that are integers in the file, with the reason.
    """

    amax: AmaxSettings
    weights: WeightSettings
    activations: ActivationSettings
    override: Sequence[OverrideSettings]
    all_layers: bool = False
    float_type: str = FLOAT32
    faster: Mapping[str, str] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)
    products: Mapping[str, str] = field(default_factory=dict)


def tensor_recipe(recipe: Recipe) -> TensorRecipe:
    """Return the sections that say how tensors are quantized."""
    return TensorRecipe(
        amax=recipe.amax,
        weights=recipe.weights,
        activations=recipe.activations,
        override=recipe.override,
        all_layers=recipe.export.prefer == SIZE,
        float_type=recipe.quantization.float_type,
    )


@dataclass(frozen=True, kw_only=True)
class TensorSettings:
    """The settings of each tensor of a plan: the recipe's, with its overrides.

    Attributes:
        activations, activation_families: by source, the tensor whose statistics decide.
        overridden: the tensors that an override changed the settings of, in the plan's order.
        excluded: the layers that are kept in float, with the reason.
        included: the layers that are asked for, whatever speaks against them.
        modes: what is done with the activations that each layer reads, where that is not ``"static"``.
        dynamic: for layers of the mode ``"dynamic"``, what shares a scale of these activations.
        asked: layers whose mode an override decides.
        products: layers that compute in float with weights that are integers in the file, with the reason.
    """

    activations: Mapping[str, AmaxSettings]
    weights: Mapping[WeightSite, AmaxSettings]
    overridden: _Names
    activation_families: Mapping[str, ActivationFamily]
    weight_families: Mapping[WeightSite, WeightFamily]
    excluded: Mapping[str, str]
    included: frozenset[str]
    modes: Mapping[str, str] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    products: Mapping[str, str] = field(default_factory=dict)

    def other_formats(self, target: Target) -> dict[str, str]:
        """Return the formats of activations that are asked for and are not the target's own, by source."""
        return {
            source: family.dtype
            for source, family in self.activation_families.items()
            if isinstance(family, ScaledActivations) and family.dtype not in (None, target.activation.format)
        }

    def of(self, plan: Plan, target_plan: Plan) -> "TensorSettings":
        """Return the settings for a plan with fewer integer layers than the one that they were made for.

        Tensors that only such a layer ties have parameters of their own there; their settings are the same.
        """
        before = {source: target_plan.activations[source].source for source in plan.sources}
        known = {(site.node, site.input_index): site for site in self.weights}
        weights = {site: known[site.node, site.input_index] for site in plan.weights}
        return replace(
            self,
            weights=_also_under(weights, self.weights),
            weight_families=_also_under(weights, self.weight_families),
            activations=_also_under(before, self.activations),
            activation_families=_also_under(before, self.activation_families),
        )


def _also_under(old_keys: Mapping[_Key, _Key], settings: Mapping[_Key, _Item]) -> dict[_Key, _Item]:
    return {**settings, **{new: settings[old] for new, old in old_keys.items()}}


def tensor_settings(model: ir.Model, plan: Plan, target: Target, recipe: TensorRecipe) -> TensorSettings:
    """Return the settings of each tensor.

    An override means an activation by its own name, by those of the tensors that share its parameters, and
    by the names and operator types of the layers that compute them, a Relu and the Conv that it is part of; a
    weight by its own name and its layer's. The name of an If, Loop or Scan means the layers inside it, too.
    """
    activations, layers = meant_activations(model, plan, Rules(target)), meant_layers(model)
    of_layers = layer_activations(layers, recipe.activations, recipe.override)
    modes = {name: mode_of(item) for name, item in of_layers.items() if mode_of(item) != STATIC}
    modes |= dict.fromkeys(recipe.products, FLOAT)
    tables = [site for site in table_sites(model, target) if modes.get(site.node) == FLOAT]
    weights = meant_weights(model, (*plan.weights, *tables))
    every = [list(found.values()) for found in (activations, weights, layers)]
    require_matches(recipe.override, *every)
    overrides = OverridesByName(recipe.override)

    def settle(meant: Meant) -> AmaxSettings:
        return settings_for(meant, recipe.amax, overrides)

    of_activations = {source: settle(meant) for source, meant in activations.items()}
    of_weights = {site: settle(meant) for site, meant in weights.items()}
    activation_families = {
        source: _activation_family(recipe, overrides.of(meant), target, plan.activations[source])
        for source, meant in activations.items()
    }
    weight_families = {
        site: _weight_family(meant, recipe, overrides.of(meant), target) for site, meant in weights.items()
    }
    included = frozenset(name for name, last in decided_layers(layers, recipe.override) if last.quantize)
    unread = _unread(model, weight_families, weights, target, recipe, (modes, included))
    for site, family in weight_families.items():
        if site.node not in unread:
            _require(family, site, target, next(iter(weights[site].ops)), modes.get(site.node, STATIC))
    changed = (
        *_changed_amax(of_activations, of_weights, recipe.amax),
        *_changed_families(activation_families, weight_families, weights, recipe, target),
    )
    return TensorSettings(
        activations=of_activations,
        weights=of_weights,
        overridden=tuple(dict.fromkeys(changed)),
        activation_families=activation_families,
        weight_families=weight_families,
        excluded={**unread, **excluded_layers(layers, recipe.override, target)},
        included=included,
        modes=modes,
        dynamic={name: granularity_of(of_layers[name]) for name, mode in modes.items() if mode == DYNAMIC},
        asked=frozenset(with_own_mode(layers, recipe.override)),
        products=recipe.products,
    )


def _activation_family(
    recipe: TensorRecipe, overrides: Iterable[OverrideSettings], target: Target, site: ActivationSite
) -> ActivationFamily:
    settings = recipe.activations
    for item in overrides:
        settings = overridden(settings, item.activations)
    family = activation_family(settings)
    require_activation(family, site, target)
    return family


def _weight_family(
    meant: Meant, recipe: TensorRecipe, overrides: Iterable[OverrideSettings], target: Target
) -> WeightFamily:
    (op_type,) = meant.ops
    settings, rule = recipe.weights, target.weight_rule(op_type)
    for item in overrides:
        settings = overridden(settings, item.weights)
    return weight_family(within_bits(settings, rule))


def _unread(
    model: ir.Model,
    families: Mapping[WeightSite, WeightFamily],
    weights: Mapping[WeightSite, Meant],
    target: Target,
    recipe: TensorRecipe,
    layers: tuple[Mapping[str, str], Container[str]],
) -> dict[str, str]:
    """Return the layers that stay float because no kernel reads their weight in blocks, with the reason.

    Blocks that an override asks for by the layer's name are stored all the same; ``layers`` are the modes of
    all, and those that are asked for.
    """
    modes, included = layers
    found, overrides = {}, OverridesByName(recipe.override)
    for site, family in families.items():
        (op_type,) = weights[site].ops
        by_name = any(
            item.weights is not None and item.weights.block_size is not None
            for item in overrides.of(weights[site])
        )
        mode, weight = modes.get(site.node, STATIC), model.graph.initializers.get(site.tensor)
        reason = unread_blocks(family, target, op_type, mode, weight)
        reason = reason or shorter_block(family, site, target, op_type, mode, constant_shape(weight))
        if reason and not by_name and site.node not in included:
            found[site.node] = reason
    return found


def _require(family: WeightFamily, site: WeightSite, target: Target, op_type: str, mode: str) -> None:
    rule = block_rule(family, target, op_type, mode)
    if rule is not None and isinstance(family, ScaledWeights):
        require_blocks(family, site, target, rule)
    else:
        require_weight(family, site, target, op_type)


def _changed_amax(
    activations: Mapping[str, AmaxSettings], weights: Mapping[WeightSite, AmaxSettings], general: AmaxSettings
) -> Iterator[str]:
    """Yield the tensors whose amax is decided otherwise than the recipe says of all."""
    for source, found in activations.items():
        if _differ(found, general, "method"):
            yield source
    for site, found in weights.items():
        if _differ(found, general, "weight_method"):
            yield site.tensor


def _changed_families(
    activations: Mapping[str, ActivationFamily],
    families: Mapping[WeightSite, WeightFamily],
    weights: Mapping[WeightSite, Meant],
    recipe: TensorRecipe,
    target: Target,
) -> Iterator[str]:
    """Yield the tensors with another quantizer than the recipe names for all."""
    plain = activation_family(recipe.activations)
    yield from (source for source, found in activations.items() if found != plain)
    general = {
        site: weight_family(within_bits(recipe.weights, target.weight_rule(next(iter(meant.ops)))))
        for site, meant in weights.items()
    }
    yield from (site.tensor for site, found in families.items() if found != general[site])


def _differ(one: AmaxSettings, other: AmaxSettings, method: str) -> bool:
    """Whether two settings decide differently, where ``method`` names the field that counts."""
    if getattr(one, method) != getattr(other, method):
        return True
    return one.percentile != other.percentile and getattr(one, method) in (AUTO_METHOD, "percentile")
