"""A headless Chromium for tests, and what they measure in it.

Where there is no Chromium with its driver, tests that ask for one are skipped, and say so. ``.ci/run``
installs both.
"""

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tools.processors.page import missing_programs, open_browser

PHONE = 390
# Returns the texts of a page whose contrast with what is behind them is less than WCAG AA asks for.
CONTRAST = """
const level = (text) => {
  const parts = text.match(/[\\d.]+/g).map(Number);
  const [r, g, b] = parts.slice(0, 3).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return { light: 0.2126 * r + 0.7152 * g + 0.0722 * b, solid: parts.length < 4 || parts[3] > 0.99 };
};
const known = new Map([[null, 1]]);
const behind = (element) => {
  if (!known.has(element)) {
    const found = level(getComputedStyle(element).backgroundColor);
    known.set(element, found.solid ? found.light : behind(element.parentElement));
  }
  return known.get(element);
};
const weak = [];
const seen = { opacityProperty: true, visibilityProperty: true };
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const shown = element.checkVisibility(seen) && !element.closest("svg, .skip, .md-skip, option");
  if (!own || !shown) continue;
  const [front, back] = [level(getComputedStyle(element).color).light, behind(element)];
  const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  if (ratio < 4.5) weak.push(`${element.tagName}.${element.className}: ${ratio.toFixed(2)}`);
}
return weak;
"""


def start_browser() -> Iterator[webdriver.Chrome]:
    """Yield a browser, and end it afterwards."""
    if missing := missing_programs():
        pytest.skip(missing)
    with open_browser() as browser:
        yield browser


def set_screen(
    browser: webdriver.Chrome, width: int, *, scheme: str = "light", media: str = "screen"
) -> None:
    """Give the browser a width, a preferred color scheme, and what the page is shown on."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},  # or a click meets what is still moving
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
