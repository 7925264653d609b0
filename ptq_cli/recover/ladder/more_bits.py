"""The rung ``bits``: zero points for blocks, and more bits for the weights that cost the outputs the most.

Where only weights are quantized, to 4 bits or fewer, a few layers make most of the noise for their bytes.
They are chosen before ``round``, whose integers make up for what layers before them lose, and fit no others.
"""

import time
from collections.abc import Callable, Mapping

from ptq_cli.core.errors import TargetOverrideError
from ptq_cli.core.formats import BYTE
from ptq_cli.core.progress import RunProgress
from ptq_cli.models.files.stored import serialize
from ptq_cli.plan.embedding_tables import tied_tables
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import StagedModel, cut_stages
from ptq_cli.qdq.write.weight_quantizer import HALF_BYTE, QUARTER_BYTE
from ptq_cli.recipe.declaration import BITS
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recover.ladder.escalation import LEAST_GAIN_DB, about
from ptq_cli.recover.ladder.float_layers import FEW_JUDGED, judge_of_worst
from ptq_cli.recover.output_noise import lowest_of, lowest_of_floats, noise_of
from ptq_cli.recover.quantized_layer import DecidedModel, quantized_layers
from ptq_cli.recover.recovery_context import (
    SPARE_DB,
    RecoveryContext,
    few,
    sample_work,
    samples_in,
)
from ptq_cli.recover.recovery_effects import RungEffect

MOST_ADDED = 0.25  # of the bytes of the integers: a fifth bit for each of four, which no kernel reads
ROUND_GAINS_DB = 5.0  # what ``round`` gains of few bits, at least: 5 to 14 dB, benchmarks/RESULTS.md
_RANKED_ON = 4  # samples that what each weight costs is measured on, or fewer
# Multiply-accumulates of ranking: a minute or two for some samples, and some minutes, as ``round``, for one.
_QUICK, _MOST_WORK = 3e12, 1e13

_Weight = tuple[dict[str, int], float, float]  # more bits for its layers, the bytes that these add, and now
# Decides a model with more bits for weights of layers, and with zero points for all blocks or as asked.
Decide = Callable[[Mapping[str, int], bool], DecidedModel]


class BitsSearch:
    """The search for zero points and bits that outputs need beyond what was asked for."""

    def __init__(self, context: RecoveryContext, decide: Decide, stop: Callable[[], bool]) -> None:
        self._context, self._decide, self._stop = context, decide, stop
        self._ranked, self._floats = 0, (floats := context.float_model.load())
        self._judge, self._count = judge_of_worst(context, floats, FEW_JUDGED, of=lowest_of_floats(floats))

    def choose(self, goal_db: float, *, zero_points: bool) -> RungEffect | None:
        """Give blocks ``zero_points``, and bits to the weights that cost most for the bytes.

        As many as bring the worst output, with weights to nearest, above the goal by the noise of each alone,
        within ``MOST_ADDED``. Return what was done, None if that was not needed or helps nothing.
        """
        before, rounded = self._sqnr({})
        if before >= goal_db or self._stop():
            return None
        reached, zeros, bits = before, False, dict[str, int]()
        if zero_points:
            after, count = self._sqnr({}, zeros=True)
            # Weights that ``round`` has to leave as they are lose more than zero points gain.
            if zeros := count >= rounded and after >= before + LEAST_GAIN_DB:
                reached = after
        wanted_db = goal_db + SPARE_DB
        chosen = self._loudest(reached, wanted_db, zeros=zeros) if reached < wanted_db else {}
        if chosen and (after := self._sqnr(chosen, zeros=zeros)[0]) >= reached + LEAST_GAIN_DB:
            reached, bits = after, chosen
        if not bits and not zeros:
            return None
        return RungEffect(
            rung=BITS,
            changed=True,
            kept=True,
            before=before,
            after=reached,
            samples=self._ranked,
            decided_by=self._count,
            layers={},
            refused={},
            damped=(),
            more_bits=bits,
            zero_points=zeros,
        )

    def _sqnr(self, bits: Mapping[str, int], *, zeros: bool = False) -> tuple[float, int]:
        """Return the SQNR of the worst output, in dB, and of how many layers ``round`` may choose weights."""
        if (made := self._decided(bits, zeros=zeros)) is None:
            return 0.0, -1
        layers, _ = quantized_layers(self._floats, made)
        made.write(made.model)
        return self._judge(serialize(made.model)), len(layers)

    def _decided(self, bits: Mapping[str, int], *, zeros: bool) -> DecidedModel | None:
        try:
            return self._decide(bits, zeros)
        except TargetOverrideError:  # The target has no kernel for these.
            return None

    def _loudest(self, reached: float, wanted: float, *, zeros: bool) -> dict[str, int]:
        """Return more bits for the weights that make the most noise for the bytes that these add."""
        made = self._decide({}, zeros)
        noise = self._noise_alone(made, weights := self._open_weights(made, zeros=zeros))
        return chosen_bits(weights, noise, 1.0 - 10.0 ** ((reached - wanted) / 10.0))

    def _open_weights(self, made: DecidedModel, *, zeros: bool) -> dict[str, _Weight]:
        """Return the weights of few bits that may have more, by the target and the recipe's overrides."""
        families, graph = made.placement.families, self._floats.graph
        own = {
            site.node: site
            for site in made.plan.weights
            if site.format.bits <= HALF_BYTE
            and isinstance(family := families[site], ScaledWeights)
            and family.dtype is None
        }
        more = {name: HALF_BYTE if site.format.bits <= QUARTER_BYTE else BYTE for name, site in own.items()}
        tied = {item.site.node: item.gathers for item in tied_tables(graph, made.plan.weights)}
        asked = more | {name: more[node] for node in tied.keys() & more.keys() for name in tied[node]}
        placed = self._decided(asked, zeros=zeros)
        sites = placed.plan.weights if placed is not None else ()
        has_more = {site.node for site in sites if site.format.bits == more.get(site.node)}
        found: dict[str, _Weight] = {}
        for name, site in own.items():
            value = graph.initializers[site.tensor].const_value
            if name in has_more and value is not None:
                layers, _, _ = found.get(site.tensor, ({}, 0.0, 0.0))
                layers |= dict.fromkeys((name, *tied.get(name, ())), more[name])
                before = value.size * site.format.bits / BYTE
                found[site.tensor] = layers, value.size * more[name] / BYTE - before, before
        return found

    def _noise_alone(self, made: DecidedModel, weights: Mapping[str, _Weight]) -> dict[str, float]:
        """Return the noise share of the worst output with one weight alone to nearest, by tensor.

        Edge case: None where that would take long, and none of layers inside others.
        """
        context, floats, data = self._context, self._floats, self._context.data
        work = len(weights) * sample_work(floats, data.samples[0].fit[0], data.inputs) / 2
        if work > _MOST_WORK or not weights:
            return {}
        count = min(_RANKED_ON, int(_QUICK / (work + 1)))
        pieces = few(data.samples[0].fit, data.inputs, max(1, count))
        self._ranked = sum(map(samples_in, pieces))
        made.write(made.model)
        twins = TwinGraphs(floats, made.model)
        outputs = [value.name or "" for value in floats.graph.outputs if value.const_value is None]
        integer = {layer.name for layer in made.plan.layers if layer.quantized}
        staged = StagedModel(cut_stages(twins, integer), twins.pairs, outputs[0], outputs)
        begin = time.monotonic()
        bases = [staged.run(piece, quantized=False) for piece in pieces]
        seconds = len(weights) * (time.monotonic() - begin) / 2
        context.tell(
            f"weights to nearest cost the worst output too much: measuring what each of {len(weights)} costs "
            f"takes {about(seconds)}; --recover none skips this"
        )
        found: dict[str, float] = {}
        for done, (tensor, (layers, _, _)) in enumerate(weights.items()):
            context.progress(RunProgress(BITS, done, len(weights), number=done, runs=len(weights)))
            for name in layers if not self._stop() else ():
                noise = []
                for base in bases if name in staged.layers else ():
                    wanted = [staged.floats(output, base[output]) for output in outputs]
                    changed = staged.changed_outputs(name, base)
                    noise.append(noise_of(wanted, [changed[output] for output in outputs]))
                found[tensor] = found.get(tensor, 0.0) + 10.0 ** (-lowest_of(noise) / 10.0)
        return found


def chosen_bits(weights: Mapping[str, _Weight], noise: Mapping[str, float], surplus: float) -> dict[str, int]:
    """Return bits for the weights that cost most for the bytes, until this share of the noise is away.

    Example:
        >>> weights = {"loud": ({"a": 8}, 2, 2), "large": ({"b": 8}, 9, 9), "quiet": ({"c": 8}, 1, 1)}
        >>> noise = {"loud": 0.5, "large": 0.4, "quiet": 0.1}
        >>> chosen_bits(weights, noise, 0.9), chosen_bits(weights, noise, 0.4)
        ({'a': 8, 'c': 8}, {'a': 8})
    """
    order = sorted(noise, key=lambda tensor: (-noise[tensor] / weights[tensor][1], tensor))
    total, spare = sum(noise.values()), MOST_ADDED * sum(before for _, _, before in weights.values())
    chosen = dict[str, int]()
    for tensor in order:
        layers, added, _ = weights[tensor]
        if surplus > 0.0 and noise[tensor] and added <= spare:
            chosen |= layers
            spare, surplus = spare - added, surplus - noise[tensor] / total
    return chosen
