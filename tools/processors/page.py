"""Run the page of a folder of cases in a headless Chromium, and save the answer that it makes.

python -m tools.processors.page CASES [--name NAME] [--repeats N] [-o FILE]
"""

import argparse
import base64
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

NAMES = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "chromedriver": ("chromedriver",)}
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    # What a page asks of any other host fails, and the browser's log says so.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
LONGEST_S = 3600
SAVED = """
const done = arguments[0];
fetch(document.querySelector("a").href).then((it) => it.blob()).then((blob) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.split(",")[1]);
  reader.readAsDataURL(blob);
});
"""


def missing_programs() -> str:
    """Return what is not installed of a browser and its driver, as a sentence; empty if both are."""
    missing = [what for what, names in NAMES.items() if not any(map(shutil.which, names))]
    return f"no {' and no '.join(missing)} here: apt-get install chromium chromium-driver" if missing else ""


@contextmanager
def open_browser() -> Iterator[webdriver.Chrome]:
    """Start a browser, and end it afterwards."""
    found = {what: next(filter(None, map(shutil.which, names))) for what, names in NAMES.items()}
    options = webdriver.ChromeOptions()
    options.binary_location = found["chromium"]
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(found["chromedriver"]))
    try:
        yield driver
    finally:
        driver.quit()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(cases: Path) -> Iterator[str]:
    """Serve a folder of cases, and return the address of its page."""
    handler = functools.partial(_Quiet, directory=str(cases))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/index.html"
        finally:
            server.shutdown()
            thread.join()


def press_run(browser: webdriver.Chrome) -> list[str]:
    """Let an open page run its cases, and return the lines that it shows."""
    browser.find_element(By.TAG_NAME, "button").click()
    log = browser.find_element(By.TAG_NAME, "pre")
    ended = ("done", "failed: ")
    WebDriverWait(browser, LONGEST_S).until(lambda _: log.text.split("\n")[-1].startswith(ended))
    return log.text.splitlines()


def saved_answer(browser: webdriver.Chrome) -> bytes:
    """Return the file that a page offers."""
    return base64.b64decode(browser.execute_async_script(SAVED))


def main(words: Sequence[str]) -> int:
    """Run a folder, and return the exit status: 1 if a case could not be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--name", default="browser")
    parser.add_argument("--repeats", default="0")
    parser.add_argument("-o", "--output", type=Path, default=Path("answer.safetensors"))
    asked = parser.parse_args(words)
    with served(asked.cases) as address, open_browser() as browser:
        browser.set_script_timeout(LONGEST_S)
        browser.get(f"{address}?repeats={asked.repeats}")
        name = browser.find_element(By.NAME, "name")
        name.clear()
        name.send_keys(asked.name)
        lines = press_run(browser)
        print("\n".join(lines))
        if lines[-1].startswith("failed: "):
            print(lines[-1], file=sys.stderr)
            return 1
        asked.output.write_bytes(saved_answer(browser))
    return 0 if lines[-1] == "done" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
