"""Draw the figures of ``docs/quantizers.md``: the staircase of each quantizer, and its gradient below.

python -m tools.draw_quantizers           writes them
python -m tools.draw_quantizers --check   exits with 1 and names those that differ
"""

import io
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

from ptq_cli.pipeline.tensor_plot import STYLE
from ptq_cli.quantizers.assign import quantize_to_centers
from ptq_cli.quantizers.dorefa import affine_k_bit_quantize, k_bit_quantize
from ptq_cli.quantizers.fixed_point import fixed_point
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize
from ptq_cli.quantizers.step import multi_level_spike_count, step_quantize
from ptq_cli.quantizers.straight_through import ceil, clamp, floor
from ptq_cli.quantizers.straight_through import round as round_straight_through
from tools.quantizer_curves import BEYOND, Curve, beyond, draw_axes

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
PANEL_INCHES, HEIGHT_INCHES = 2.9, 3.1
# Text is stored as text, which is small. A white background is readable on a dark page.
FIGURE_STYLE: Any = {**STYLE, "svg.fonttype": "none", "font.size": 9.0, "font.family": "DejaVu Sans"}
METADATA: Any = {"Date": None, "Creator": None}
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")
DIGEST = re.compile(r"\b[mp][0-9a-f]{10}\b")  # The name of a path, made from all its numbers
NEAR = 0.02  # Tolerance in points of a drawing: the exponential of another processor may differ by this

CENTERS = torch.tensor([-1.5, -0.6, 0.0, 0.4, 1.6])


def _dorefa_weight(x: torch.Tensor) -> torch.Tensor:
    """Return weights with 2 bits and an amax of 1."""
    width, low = torch.tensor(2.0), torch.tensor(-1.0)
    return affine_k_bit_quantize((clamp(x, -1.0, 1.0) - low) / width, 2, width, low)


def figures() -> Mapping[str, Mapping[str, Curve]]:
    """Return the panels of each figure, by title."""
    return {
        "straight_through": {
            "round": Curve(round_straight_through, -2.2, 2.2),
            "ceil": Curve(ceil, -2.2, 2.2),
            "floor": Curve(floor, -2.2, 2.2),
            "clamp(x, -1, 1)": Curve(lambda x: clamp(x, -1.0, 1.0), -2.2, 2.2),
        },
        "scaled": {
            "bits=3, amax=1": beyond(lambda x: fake_quantize(x, 1.0, bits=3), -1.0, 1.0),
            "bits=3, amax=1, unsigned": Curve(
                lambda x: fake_quantize(x, 1.0, bits=3, unsigned=True), 0.0, 1.0 + BEYOND
            ),
        },
        "fixed_point": {
            "bits=3": beyond(lambda x: fixed_point(x, 3), -1.0, 0.75),
            "bits=3, symmetric, alpha=0.5": Curve(
                lambda x: fixed_point(x, 3, symmetric=True, alpha=0.5), -1.4, 1.4
            ),
        },
        "dorefa": {
            "k_bit_quantize, k=2": Curve(lambda x: k_bit_quantize(x, 2), -0.4, 1.4),
            "a weight, k=2, amax=1": beyond(_dorefa_weight, -1.0, 1.0),
        },
        "step": {
            "step_quantize, step=0.5": Curve(lambda x: step_quantize(x, 0.5), -1.7, 1.7),
            "multi_level_spike_count, 3": Curve(lambda x: multi_level_spike_count(x, 3), -1.0, 4.0),
        },
        "centers": {
            f"temperature={temperature:g}": Curve(
                partial(quantize_to_centers, centers=CENTERS, temperature=temperature), -2.2, 2.3
            )
            for temperature in (0.1, 0.5)
        },
    }


def draw(panels: Mapping[str, Curve]) -> str:
    """Return a figure as SVG, with one column per panel."""
    with mpl.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(PANEL_INCHES * len(panels), HEIGHT_INCHES), layout="constrained")
        axes = figure.subplots(2, len(panels), sharex="col", height_ratios=[3, 1])
        for column, (title, curve) in enumerate(panels.items()):
            above, below = axes[0, column], axes[1, column]
            draw_axes(above, below, curve)
            above.set_title(title, fontsize="medium", parse_math=False)
            below.set_xlabel("x")
        axes[0, 0].set_ylabel("result")
        axes[1, 0].set_ylabel("gradient")
        axes[0, 0].legend(fontsize="small")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=METADATA)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def is_same(one: str, other: str) -> bool:
    """Tell whether two drawings have the same text and almost the same numbers.

    Example:
        >>> is_same("M 1.5 2", "M 1.501 2"), is_same("M 1.5 2", "M 1.6 2"), is_same("M 1 2", "L 1 2")
        (True, False, False)
    """
    one, other = DIGEST.sub("", one), DIGEST.sub("", other)
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    first, second = (np.array(NUMBER.findall(text), dtype=np.float64) for text in (one, other))
    return bool(np.allclose(first, second, rtol=0, atol=NEAR))


def main(arguments: Sequence[str]) -> int:
    """Write or check every figure; return the exit status."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m tools.draw_quantizers [--check]", file=sys.stderr)
        return 2
    outdated = 0
    for name, panels in figures().items():
        path, wanted = FOLDER / f"{name}.svg", draw(panels)
        if path.is_file() and is_same(path.read_text(encoding="utf-8"), wanted):
            continue
        outdated += 1
        if arguments:
            print(f"docs/figures/{name}.svg is out of date", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote docs/figures/{name}.svg")
    if arguments and outdated:
        print("hint: python -m tools.draw_quantizers writes them again", file=sys.stderr)
    return 1 if arguments and outdated else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
