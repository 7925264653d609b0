"""Cases that travel: packed, run by what needs no ptq, and answered; also under node and in a browser."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

import ptq_cli
from ptq_cli.core.errors import PtqError
from tests.browser import CONTRAST, PHONE, set_screen, start_browser
from tests.e2e.conftest import Ptq, Refuse
from tools.processors.emulators import UnavailableError, web_modules
from tools.processors.page import press_run, saved_answer, served

ROOT = Path(__file__).parents[2]


def run_cases(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "cases/run.py", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def packed(folder: Path, ptq: Ptq) -> Path:
    outcome = ptq("verify --pack cases --samples 4")
    assert outcome.status == 0, outcome.err
    assert outcome.out.splitlines()[0] == "model_int8.onnx: 3 integer kernels, 4 samples of calib.npz"
    assert "next, on a device" in outcome.err
    return folder


def test_pack_run_answer(packed: Path, ptq: Ptq) -> None:
    run_cases()
    outcome = ptq("verify --answers answer.safetensors cases --min-exact-kernels 1 --min sqnr_db=15")
    assert outcome.status == 0, outcome.out
    lines = outcome.out.splitlines()
    assert lines[0] == "model_int8.onnx for ort-cpu: 3 kernels, 4 samples, packed on " + lines[0].split()[-1]
    assert "kernels: 3 of 3 exact" in lines and "both against the float model" in lines
    assert lines[-1] == "PASS"


def test_a_gate_on_many_devices(packed: Path, ptq: Ptq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("answers").mkdir()
    for name in ("pi", "phone"):
        run_cases("--name", name, "-o", f"answers/{name}.safetensors")
    outcome = ptq("verify --answers answers cases --min sqnr_db=99")
    assert outcome.status == 3
    rows = [line.split()[0] for line in outcome.out.splitlines() if " 100 % " in line]
    assert rows == ["phone", "pi"]
    failed = [line for line in outcome.out.splitlines() if line.startswith("FAIL p")]
    assert len(failed) == 2 and failed[0].startswith("FAIL phone: sqnr_db is ")
    summary = Path("summary.md").read_text(encoding="utf-8")
    assert "**fail**" in summary and "| pi | onnxruntime" in summary and "FAIL pi&#58; sqnr" in summary
    document = json.loads(ptq("verify --answers answers cases --json").out)
    assert [item["exact_share"] for item in document["devices"]] == [1.0, 1.0]
    assert json.loads(ptq("verify --pack cases --json").out)["manifest"]["samples"] == 8


def test_the_runs_page_shows_what_devices_gave(packed: Path, ptq: Ptq, refuse: Refuse) -> None:
    page, markdown = packed / "ptq-run/report.html", packed / "ptq-run/report.md"
    before = page.read_bytes(), markdown.read_bytes()
    Path("bad.safetensors").write_text("no answer")
    refuse("verify --answers bad.safetensors cases", "PTQ-CASES-002", "is damaged or cut off", hint="")
    run_cases("--name", "pi", "--emulated")
    assert "wrote" not in ptq("verify --answers answer.safetensors cases --run other").out
    assert (page.read_bytes(), markdown.read_bytes()) == before, "bad answers and other runs change nothing"
    outcome = ptq("verify --answers answer.safetensors cases --min sqnr_db=99")
    assert outcome.status == 3
    assert "wrote ptq-run/devices.json, report.md and report.html" in outcome.out
    shown = page.read_text(encoding="utf-8"), markdown.read_text(encoding="utf-8")
    assert 'id="devices"' in shown[0] and "FAIL pi: sqnr_db is" in shown[0] and "µs emulated<" in shown[0]
    assert "### On devices" in shown[1] and "| pi | onnxruntime" in shown[1]
    assert ptq("report").status == 0
    assert page.read_text(encoding="utf-8") == shown[0]
    assert ptq("evaluate --min top1=0.01").status == 0
    assert 'id="devices"' in page.read_text(encoding="utf-8"), "a new evaluation of the same model keeps it"
    assert "### On devices" in markdown.read_text(encoding="utf-8")


def test_answers_to_an_earlier_model_are_not_shown(packed: Path, ptq: Ptq) -> None:
    run_cases()
    assert ptq("verify --answers answer.safetensors cases").status == 0
    assert ptq("export --amax max").status == ptq("evaluate").status == 0
    outcome = ptq("report")
    assert "note: The answers of devices are to another quantized model, and are not shown." in outcome.out
    assert 'id="devices"' not in (packed / "ptq-run/report.html").read_text(encoding="utf-8")


def test_from_python(packed: Path) -> None:
    assert ptq_cli.pack_cases("cases", samples=2).manifest.samples == 2
    run_cases()
    found = ptq_cli.compare_answers("answer.safetensors", "cases", min={"sqnr_db": 99})
    assert (found.devices[0].exact_share, found.verdict) == (1.0, "fail")
    with pytest.raises(PtqError, match=r": samples is 0, expected at least 1\n"):
        ptq_cli.pack_cases("cases", samples=0)


def test_earlier_cases_are_replaced(packed: Path, ptq: Ptq) -> None:
    (packed / "cases/kernels/kernel-099.onnx").touch()
    assert ptq("verify --pack cases").status == 0
    assert not (packed / "cases/kernels/kernel-099.onnx").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("--pack .", "PTQ-FILE-002", "'.' holds other files, expected a new folder or earlier cases"),
        ("--pack cases --samples 0", "PTQ-USAGE-001", "--samples is 0, expected at least 1"),
        ("--pack cases --answers a", "PTQ-USAGE-001", "--pack and --answers cannot be used together"),
        ("--samples 4", "PTQ-USAGE-001", "--samples is for --pack"),
        ("--min sqnr_db=30", "PTQ-USAGE-001", "--min and --min-exact-kernels are for --answers"),
        ("--answers a", "PTQ-USAGE-001", "--answers needs the folder of cases that the device ran"),
        ("--answers a cases", "PTQ-FILE-001", "manifest 'cases/manifest.json' does not exist"),
        ("--answers a cases --min top5=1", "PTQ-GATE-001", "--min names 'top5', which answers do not have"),
        (
            "--answers a cases --min-exact-kernels 99",
            "PTQ-USAGE-001",
            "--min-exact-kernels is 99, expected a share from 0 to 1",
        ),
        ("ptq-run/model.float.onnx --pack cases", "PTQ-MODEL-008", "contains no QuantizeLinear"),
    ],
)
def test_what_is_refused(refuse: Refuse, words: str, code: str, says: str) -> None:
    refuse(f"verify {words}", code, says, hint="")


def test_what_is_refused_of_answers(packed: Path, refuse: Refuse) -> None:
    Path("empty").mkdir()
    Path("text.safetensors").write_text("no answer")
    refuse("verify --answers empty cases", "PTQ-CASES-002", "the folder 'empty' has no answers")
    refuse("verify --answers text.safetensors cases", "PTQ-CASES-002", "is damaged or cut off", hint="")
    Path("cases/manifest.json").write_text("{")
    refuse("verify --answers text.safetensors cases", "PTQ-CASES-001", "it is not valid JSON", hint="")


def test_without_data_there_are_no_cases(folder: Path, refuse: Refuse, ptq: Ptq) -> None:
    shutil.copy("ptq-run/model_int8.onnx", "alone.onnx")
    says = "there are no data for the cases of 'alone.onnx'"
    refuse("verify alone.onnx --pack cases", "PTQ-USAGE-001", says, hint="--random-inputs")
    assert ptq("verify alone.onnx --pack cases --random-inputs").status == 0
    # Without the float model beside it, the file as it is written is what SQNR is measured against.
    run_cases()
    assert "both against the file as it is written" in ptq("verify --answers answer.safetensors cases").out


@pytest.fixture(scope="module")
def web() -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node with npm here")
    try:
        return web_modules(ROOT / ".emulation")
    except UnavailableError as error:
        pytest.skip(str(error))


def test_under_node(packed: Path, web: Path, ptq: Ptq) -> None:
    (packed / "cases/node_modules").symlink_to(web)
    done = subprocess.run(
        ["node", "cases/run.mjs", "--repeats", "1", "--name", "server"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 5 and done.stdout.count("as expected") == 4
    outcome = ptq("verify --answers answer.safetensors cases --min-exact-kernels 1 --min sqnr_db=15")
    assert outcome.status == 0 and "server (wasm, linux): onnxruntime-web" in outcome.out


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    yield from start_browser()


@pytest.fixture
def address(packed: Path) -> Iterator[str]:
    with served(packed / "cases") as address:
        yield address


def test_in_a_browser(packed: Path, web: Path, address: str, browser: webdriver.Chrome, ptq: Ptq) -> None:
    (packed / "cases/node_modules").symlink_to(web)
    set_screen(browser, PHONE)
    browser.get(address)
    assert browser.execute_script(CONTRAST) == []
    lines = press_run(browser)
    assert lines[-1] == "done" and sum("as expected" in line for line in lines) == 4
    assert browser.execute_script("return document.documentElement.scrollWidth") == PHONE
    Path("browser.safetensors").write_bytes(saved_answer(browser))
    outcome = ptq("verify --answers browser.safetensors cases --min-exact-kernels 1 --min sqnr_db=15")
    assert outcome.status == 0 and "browser (wasm, Mozilla/" in outcome.out


def test_a_page_without_its_runtime_says_what_to_do(address: str, browser: webdriver.Chrome) -> None:
    browser.get(address)
    assert press_run(browser)[-1].endswith("npm install onnxruntime-web in this folder, and serve it")
