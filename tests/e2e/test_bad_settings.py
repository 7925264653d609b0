"""Recipes and flags that cannot be used."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.each_case import each_case

MODEL = " model.onnx --data calib.npz"
WORDS = {
    "calibrate": "calibrate" + MODEL,
    "export": "export",
    "evaluate": "evaluate",
    "quantize": "quantize" + MODEL,
    "inspect": "inspect model.onnx",
}


@dataclass(frozen=True)
class Bad:
    """The content of ptq.toml, and the answer."""

    toml: str
    code: str
    says: tuple[str, ...]
    hint: str


TOML: dict[str, Bad] = {
    "no TOML": Bad("[calibration", "PTQ-RECIPE-001", ("ptq.toml is not valid TOML",), "toml.io"),
    "an unknown section": Bad(
        "[calibraton]\n", "PTQ-RECIPE-002", ("(did you mean 'calibration'?)",), "top level"
    ),
    "a misspelt key": Bad(
        "[calibration]\nmehtod = 'max'\n",
        "PTQ-RECIPE-002",
        ("ptq.toml: unknown key 'calibration.mehtod' (did you mean 'method'?)",),
        "[calibration] has: data, method",
    ),
    "a wrong type": Bad(
        "[calibration]\nbatch_size = 'x'\n",
        "PTQ-RECIPE-003",
        ("'x', expected a whole number",),
        "batch_size",
    ),
    "a number below its range": Bad(
        "[calibration]\nbatch_size = 0\n", "PTQ-RECIPE-003", ("is 0, it must be at least 1",), "batch_size"
    ),
    "an unknown device": Bad(
        "[runtime]\ndevice = 'gpu'\n",
        "PTQ-RECIPE-004",
        ("unknown device 'gpu' (did you mean 'cuda'?)",),
        "known: cpu, cuda, cuda:N",
    ),
    "a negative drop": Bad(
        "[gate.max_drop]\ntop1 = -0.1\n", "PTQ-GATE-001", ("is negative",), "without a sign"
    ),
    "a minimum of an error": Bad(
        "[gate.min]\nmax_abs_error = 1\n", "PTQ-GATE-001", ("the worse model",), "sqnr_db"
    ),
}


@each_case("bad", TOML.values(), ids=TOML.keys())
def test_a_bad_recipe_is_refused(folder: Path, refuse: Any, bad: Bad) -> None:
    (folder / "ptq.toml").write_text(bad.toml)
    refuse(WORDS["calibrate"], bad.code, *bad.says, hint=bad.hint)


@each_case("command", WORDS)
@each_case("name", ["a misspelt key", "a number below its range", "a negative drop"])
def test_every_command_refuses_a_bad_recipe(folder: Path, refuse: Any, name: str, command: str) -> None:
    bad = TOML[name]
    (folder / "ptq.toml").write_text(bad.toml)
    refuse(WORDS[command], bad.code, *bad.says, hint=bad.hint)


def test_a_broken_link_in_place_of_ptq_toml(folder: Path, refuse: Any) -> None:
    (folder / "ptq.toml").symlink_to("nowhere.toml")
    for command in WORDS.values():
        refuse(command, "PTQ-FILE-001", "recipe 'ptq.toml' does not exist")


FLAGS = {
    "an unknown preset": (
        "calibrate model.onnx --preset fp4",
        "PTQ-RECIPE-004",
        "preset 'fp4'",
        "int8_ort_cpu",
    ),
    "an unknown method": (
        "calibrate model.onnx --method mx",
        "PTQ-RECIPE-004",
        "(did you mean 'max'?)",
        "known",
    ),
    "a text for a number": (
        "calibrate m --samples many",
        "PTQ-USAGE-001",
        "'many' is not a valid integer",
        "--help",
    ),
    "a shape of zero": (
        "inspect m --input-shape x=0,3",
        "PTQ-RECIPE-003",
        "sizes of at least 1",
        "x=1,3,224,224",
    ),
    "a limit in percent": (
        "evaluate --min sqnr_db=1%",
        "PTQ-GATE-001",
        "is not a plain number",
        "the metric's own unit",
    ),
    "a baseline that is missing": (
        "gate ptq-run/report.json --baseline nowhere.json --max-regression sqnr_db=1",
        "PTQ-FILE-001",
        "report 'nowhere.json' does not exist",
        "check the path",
    ),
    "a baseline that is no report": (
        "evaluate --baseline model.onnx --max-regression sqnr_db=1",
        "PTQ-REPORT-001",
        "baseline report 'model.onnx': it is not valid JSON",
        "ptq evaluate",
    ),
    "a baseline that would be overwritten": (
        "evaluate --baseline ptq-run/report.json --max-regression sqnr_db=1",
        "PTQ-USAGE-001",
        "would overwrite the baseline",
        "--run",
    ),
    "an option of another command": (
        "export --samples 3",
        "PTQ-USAGE-001",
        "no option '--samples'",
        "--set calibration.samples=3",
    ),
    "a word too many": ("calibrate a b", "PTQ-USAGE-001", "unexpected extra argument (b)", "--help"),
    "no report": ("gate", "PTQ-USAGE-001", "missing argument 'REPORT'", "--help"),
    "an option without its value": (
        "calibrate --data",
        "PTQ-USAGE-001",
        "'--data' requires an argument",
        "--help",
    ),
}


@each_case("words, code, says, hint", FLAGS.values(), ids=FLAGS.keys())
def test_a_bad_flag_is_refused(refuse: Any, words: str, code: str, says: str, hint: str) -> None:
    refuse(words, code, says, hint=hint)
