"""Which tensors layers read, and how."""

from collections.abc import Iterable, Mapping

import numpy as np

from ptq_cli.core.numbers.arithmetic import QuantParameters, scale_from_amax
from ptq_cli.core.numbers.formats import INT16
from ptq_cli.recovery.layers.quantized_layer import QuantizedLayer
from ptq_cli.recovery.moments.tensor_moments import InputReading, MomentSite

ROWS = 4096
"""Of a convolution with few inputs."""
ROWS_PER_INPUT = 4
"""Of one with many. Twice as many gained 0.2 dB on average of two networks with 8, 4 and 3 bits."""


def reading_of(layer: QuantizedLayer, samples: int) -> InputReading:
    """Return how a layer reads its input.

    Args:
        layer: of the model.
        samples: how many there will be; of the images of a convolution as many positions are taken as
            make enough rows.
    """
    geometry = layer.geometry
    size = len(geometry.block)
    wanted = max(ROWS, ROWS_PER_INPUT * size)
    each = -(-wanted // max(samples, 1)) if geometry.window is not None else 0
    return InputReading(groups=geometry.groups, size=size, window=geometry.window, each=each)


def grid_of_input(layer: QuantizedLayer, largest: Mapping[str, float]) -> QuantParameters | None:
    """Return the grid of integers of what a layer reads.

    Args:
        layer: of the model.
        largest: magnitude of tensors, by name: floats are put on a grid of 16 bits.

    Edge case:
        None for floats that were not measured.
    """
    if layer.parameters is not None:
        return layer.parameters
    if layer.reads not in largest:
        return None
    scale = np.asarray(scale_from_amax(largest[layer.reads], INT16), np.float32).reshape(())
    return QuantParameters(scale, np.zeros((), np.int64), INT16)


def moment_sites(
    layers: Iterable[QuantizedLayer], largest: Mapping[str, float], samples: int
) -> list[MomentSite]:
    """Return the tensors that some layers read; those whose range nobody knows are left out.

    Args:
        layers: in the order of the model.
        largest: magnitude of tensors, by name.
        samples: how many there will be.
    """
    found: dict[str, MomentSite] = {}
    for layer in layers:
        parameters = grid_of_input(layer, largest)
        if parameters is None:
            continue
        reading, before = reading_of(layer, samples), found.get(layer.reads)
        readings = before.readings if before is not None else ()
        if reading not in readings:
            readings = (*readings, reading)
        found[layer.reads] = MomentSite(tensor=layer.reads, parameters=parameters, readings=readings)
    return list(found.values())
