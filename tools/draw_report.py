"""Take the screenshot in ``docs/report.md``: the report of the image sample, with its analysis.

python -m tools.draw_report

It needs Chromium with its driver, and runs the commands on a copy of the sample.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from base64 import b64decode
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "figures" / "report.png"
COMMANDS = ("quantize model.pt --max-drop top1=0.01 --min sqnr_db=25", "analyze")
WIDTH = 1280
SHOWN_ROWS, SHADES = 6, 128


def main() -> None:
    """Write the screenshot."""
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "cifar10_cnn"
        ignored = shutil.ignore_patterns("ptq-run", "__pycache__")
        shutil.copytree(ROOT / "sample_models" / "cifar10_cnn", sample, ignore=ignored)
        for command in COMMANDS:
            subprocess.run([sys.executable, "-m", "ptq_cli", *command.split()], cwd=sample, check=True)
        shot = photograph(sample / "ptq-run" / "report.html")
    picture = Image.open(io.BytesIO(shot)).convert("RGB").quantize(SHADES)
    picture.save(PICTURE, optimize=True)
    print(f"wrote {PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size // 1000} kB")


def photograph(page: Path) -> bytes:
    """Return a screenshot of the upper part of a page, down to the first rows of the layer table, as PNG."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(
        options=options, service=Service(shutil.which("chromedriver") or "chromedriver")
    )
    try:
        size = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.as_uri())
        row = f"document.querySelectorAll('#layer-table tbody tr')[{SHOWN_ROWS}]"
        bottom = browser.execute_script(f"return {row}.getBoundingClientRect().bottom + scrollY")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": bottom, "scale": 1}
        found = browser.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
    finally:
        browser.quit()
    return b64decode(found["data"])


if __name__ == "__main__":
    main()
