"""What each weight alone, as its integers stand for it, costs the outputs of the float model."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import FloatArray
from ptq_cli.core.progress import RunProgress
from ptq_cli.models.files.stored import serialize
from ptq_cli.recover.output_noise import lowest_of, model_sqnr
from ptq_cli.recover.recovery_context import RecoveryContext, few, sample_work

_RANKED_ON = 4  # samples that what each weight costs is measured on
_MOST_WORK = 3e12  # multiply-accumulates of ranking, which take a minute or two
Rounded = Mapping[str, Mapping[str, FloatArray]]  # by layer and constant, what its integers stand for


def can_rank(context: RecoveryContext, floats: ir.Model, rounded: Rounded) -> bool:
    """Tell whether what each weight costs is measured in a minute or two."""
    work = sample_work(floats, context.data.samples[0].fit[0], context.data.inputs)
    return len(_groups(rounded)) * _RANKED_ON * work <= _MOST_WORK


def weight_noise(
    context: RecoveryContext, stage: str, rounded: Rounded, stop: Callable[[], bool]
) -> dict[tuple[str, ...], float]:
    """Return the noise share of the worst output with one weight alone rounded, by the layers that share it.

    Edge case: Those that are left when ``stop`` says so, and all where ranking takes long, have none.
    """
    groups, floats = _groups(rounded), context.float_model.load()
    noise = dict.fromkeys(map(tuple, groups.values()), 0.0)
    if not noise or not can_rank(context, floats, rounded):
        return noise
    data = context.data
    pieces = few([*data.samples[0].decide, *data.samples[0].fit], data.inputs, _RANKED_ON)
    threads, known = context.machine.threads, data.known_outputs
    judge = model_sqnr(
        context.float_model, pieces, threads=threads, of=lowest_of, known=known, name=f"weights {_RANKED_ON}"
    )
    for done, (tensors, names) in enumerate(groups.items()):
        context.progress(RunProgress(stage, done, len(groups), number=done, runs=len(groups)))
        if stop():
            break
        model = context.float_model.load()
        for tensor in tensors:
            array = ir.Tensor(np.ascontiguousarray(rounded[names[0]][tensor], np.float32), name=tensor)
            model.graph.initializers[tensor].const_value = array
        noise[tuple(names)] = 10.0 ** (-judge(serialize(model)) / 10.0)
    return noise


def _groups(rounded: Rounded) -> dict[tuple[str, ...], list[str]]:
    """Return the layers that share weights, by these."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, weights in rounded.items():
        groups.setdefault(tuple(weights), []).append(name)
    return groups
