"""Take the screenshots of reports: of each sample for its README, and two for ``docs``.

python -m tools.draw_report [NAME ...]

It needs Chromium with its driver, and runs the commands on copies of the samples. Names are those of samples;
without one, all pictures are taken.
"""

import io
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from selenium.webdriver.common.by import By

from tools.pages.sample_folders import SAMPLES, copy_sample
from tools.processors.page import open_browser

ROOT = Path(__file__).parent.parent
# What makes the report of each sample; ``docs`` shows that of the first one with its analysis.
COMMANDS = {
    "cifar10_cnn": ("quantize model.pt --max-drop top1=0.01 --min sqnr_db=25",),
    "shakespeare_language_model": ("quantize model.onnx --set gate.max_ratio.perplexity=1.02",),
    "shapes_detector": ("quantize model.onnx --max-drop map50=0.02 --max-drop found=0.02",),
    "spoken_digits_transformer": ("quantize model.pt --max-drop top1=0.01",),
}
WIDTH = 1280
SHOWN_ROWS, SHADES, MARGIN = 6, 256, 24
ROWS = f"#layer-table tbody tr:nth-child({SHOWN_ROWS + 1})"


def main() -> None:
    """Write the screenshots."""
    figures = ROOT / "docs" / "figures"
    for name in sys.argv[1:] or COMMANDS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            copy_sample(name, folder, whole=True)
            _draw(folder, COMMANDS[name], SAMPLES / name / "report.png")
            if name == next(iter(COMMANDS)):
                _draw(folder, ("analyze",), figures / "report.png")
                save(photograph(folder / "ptq-run" / "report.html", "body", "#gates"), figures / "start.png")


def _draw(folder: Path, commands: Sequence[str], target: Path) -> None:
    _run(folder, commands)
    save(photograph(folder / "ptq-run" / "report.html", "body", ROWS), target)


def _run(folder: Path, commands: Sequence[str]) -> None:
    for command in commands:
        subprocess.run([sys.executable, "-m", "ptq_cli", *command.split()], cwd=folder, check=True)


def save(shot: bytes, target: Path) -> None:
    """Write a screenshot with few colors: those that fill most, and what is not gray first."""
    pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))
    colors, which, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    # Of the grays between ink and paper a few are enough.
    kept = colors[np.argsort(-counts * (1.0 + np.ptp(colors, axis=1)))[:SHADES]].astype(np.int32)
    nearest = np.array([np.abs(kept - color).sum(axis=1).argmin() for color in colors], np.uint8)
    picture = Image.fromarray(nearest[which].reshape(pixels.shape[:2]), "P")
    picture.putpalette(kept.astype(np.uint8).tobytes())
    picture.save(target, optimize=True)
    print(f"wrote {target}, {target.stat().st_size // 1000} kB")


def photograph(page: Path, first: str, last: str) -> bytes:
    """Return a screenshot of a page, from the top of one element to the bottom of another, as PNG."""
    with open_browser() as browser:
        size = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.as_uri())
        places = "return arguments[0].getBoundingClientRect()[arguments[1]] + scrollY"
        top, bottom = (
            browser.execute_script(places, browser.find_element(By.CSS_SELECTOR, selector), side)
            for selector, side in ((first, "top"), (last, "bottom"))
        )
        top = max(0, top - MARGIN)
        clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": 1}
        found = browser.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
    return b64decode(found["data"])


if __name__ == "__main__":
    main()
