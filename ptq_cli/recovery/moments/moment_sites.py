"""Which tensors layers read, and how."""

from collections.abc import Iterable

from ptq_cli.recovery.moments.tensor_moments import MomentSite, Reading
from ptq_cli.recovery.quantized_layer import QuantizedLayer

ROWS = 8192
"""Of a convolution with few inputs."""
ROWS_PER_INPUT = 8
"""Of one with many."""


def reading_of(layer: QuantizedLayer, samples: int) -> Reading:
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
    return Reading(groups=geometry.groups, size=size, window=geometry.window, each=each)


def moment_sites(layers: Iterable[QuantizedLayer], samples: int) -> list[MomentSite]:
    """Return the tensors that some layers read as integers; layers that read floats have none.

    Args:
        layers: in the order of the model.
        samples: how many there will be.
    """
    found: dict[str, MomentSite] = {}
    for layer in layers:
        if layer.parameters is None:
            continue
        reading, before = reading_of(layer, samples), found.get(layer.reads)
        readings = before.readings if before is not None else ()
        if reading not in readings:
            readings = (*readings, reading)
        found[layer.reads] = MomentSite(tensor=layer.reads, parameters=layer.parameters, readings=readings)
    return list(found.values())
